"""The faults of tests.support.chaos: their kinds, when they happen, and their outcomes."""

import contextlib
import dataclasses
import errno
import os
import pathlib
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable

from crews import REPORT, STARTS, STEPS_PER_EPOCH, Crew, RunOverError

# As in tests/configs/interrupted.py.
EVALUATION_STEPS, SAVE_STEPS = 13, 8
# Time limit of each wait, in seconds.
_NEVER = 600.0
_OVER = r"\[0\] (finished after|This run is finished)"
# Lines of workers or the supervisor after a fault.
_LOST = (
    r"is lost: |tfdist: worker \d+: another worker|lost another worker|was killed by|does not answer|ended with exit"
)
_UNSAVED = "the checkpoint of step .* could not be written"
_STOPPED = rf"\[0\] stopped by|stopped before the training|{_LOST}"


@dataclasses.dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of a fault: seconds to its detection and to the next step; None: not measured."""

    kind: str
    phase: str
    detection: float | None = None
    recovery: float | None = None
    violation: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of fault."""

    # Causes the fault; returns a function that undoes it after its detection, or None.
    strike: Callable[[Crew, random.Random], Callable[[], object] | None]
    # A line that must appear in the log; None: none is required.
    seen: str | None
    # Whether all workers restart.
    restarts: bool = True
    phases: tuple[str, ...] = ("start", "training", "evaluation", "saving", "end")


def _send(number: int) -> Callable[[Crew, random.Random], None]:
    def strike(crew: Crew, rng: random.Random) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(crew.pid(rng.randrange(crew.workers)), number)

    return strike


def _kill_chief(crew: Crew, rng: random.Random) -> None:
    del rng
    os.kill(crew.pid(0), signal.SIGKILL)


def _ask_supervisor(crew: Crew, rng: random.Random) -> None:
    crew.process.send_signal(rng.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT]))


def _stop_and_kill(crew: Crew, rng: random.Random) -> None:
    pid = crew.pid(rng.randrange(crew.workers))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.5, 6.0))
    os.kill(pid, signal.SIGKILL)


def _pause(crew: Crew, rng: random.Random) -> None:
    pid = crew.pid(rng.randrange(crew.workers))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(rng.uniform(1.0, 5.0))  # Less than heartbeat_seconds.
    os.kill(pid, signal.SIGCONT)


def _damage(crew: Crew, rng: random.Random) -> None:
    """Kills the supervisor, and with it all workers, and damages the newest of at least two checkpoints."""

    def damage() -> None:
        saved = sorted(crew.workdir.glob("checkpoints/step-????????"))
        # A finished run reads no checkpoint any more.
        if len(saved) < 2 or (crew.workdir / "finished.json").exists():
            crew._note("skipped a damaged checkpoint: there was none to damage")
            return
        file = saved[-1] / rng.choice(["arrays.npz", "arrays.npz", "manifest.json"])
        os.truncate(file, rng.randrange(file.stat().st_size))

    crew.between.append(damage)
    crew.process.kill()


def _fill(crew: Crew, rng: random.Random) -> Callable[[], None]:
    """Fills the disk under the workdir."""
    del rng
    filler = crew.workdir.parent / "filler"
    try:
        with open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return filler.unlink


def _hide(crew: Crew, rng: random.Random) -> Callable[[], None]:
    """Renames the workdir."""
    del rng
    away = crew.workdir.with_name("away")
    crew.workdir.rename(away)
    return lambda: away.rename(crew.workdir)


def _lock(crew: Crew, rng: random.Random) -> Callable[[], None]:
    """Makes the checkpoints' directory read-only, for root as well."""
    del rng
    path = str(crew.workdir / "checkpoints")
    os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "--bind", path, path], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
    return lambda: subprocess.run(["umount", "--lazy", path], check=True)


KINDS = {
    "kill -9": Kind(strike=_send(signal.SIGKILL), seen=_LOST),
    "kill -9 of the chief while it saves": Kind(strike=_kill_chief, seen=_LOST, phases=("saving",)),
    "SIGTERM to a worker": Kind(strike=_send(signal.SIGTERM), seen=_STOPPED),
    "SIGUSR1 to a worker": Kind(strike=_send(signal.SIGUSR1), seen=_STOPPED),
    "a signal to the supervisor": Kind(strike=_ask_supervisor, seen=_STOPPED),
    "SIGSTOP": Kind(strike=_send(signal.SIGSTOP), seen=_LOST, phases=("training", "evaluation", "saving")),
    "SIGSTOP then kill -9": Kind(strike=_stop_and_kill, seen=_LOST),
    "SIGSTOP then SIGCONT": Kind(strike=_pause, seen=None, restarts=False, phases=("start", "training", "saving")),
    "a truncated checkpoint": Kind(
        strike=_damage, seen="skipped a damaged checkpoint", phases=("training", "evaluation", "saving", "end")
    ),
    "a full disk": Kind(strike=_fill, seen=_UNSAVED, restarts=False, phases=("training", "evaluation")),
    "a vanished workdir": Kind(strike=_hide, seen=_UNSAVED, restarts=False, phases=("training", "evaluation")),
    "a read-only workdir": Kind(strike=_lock, seen=_UNSAVED, restarts=False, phases=("training", "evaluation")),
}
# They need root.
OF_THE_DISK = ("a full disk", "a vanished workdir", "a read-only workdir")


def wait_for_phase(crew: Crew, phase: str, rng: random.Random, since: int) -> None:
    """Waits for a random time within a phase of the training, after its first step.

    Raises:
        RunOverError: the training has ended before.
    """
    if phase == "start":
        crew.find(STARTS, since, _NEVER)
        time.sleep(rng.uniform(0.0, 8.0))
        return
    crew.find(REPORT, since, _NEVER)
    if phase == "training":
        time.sleep(rng.uniform(0.0, 1.5))
    elif phase == "evaluation":
        # The line of an evaluated step comes after its evaluation: wait for the step before.
        steps = range(EVALUATION_STEPS - 1, 9999, EVALUATION_STEPS)
        epochs = "|".join(re.escape(f"{step / STEPS_PER_EPOCH:.4g}") for step in steps)
        crew.find(rf"\[0\] [\d:]{{8}} +epoch +({epochs})/", len(crew.lines), _NEVER)
        time.sleep(rng.uniform(0.0, 0.2))
    elif phase == "saving":
        wait_for_save(crew)
    elif phase == "end":
        crew.find(r"\[0\] [\d:]{8} +epoch +(\S+)/\1 ", since, _NEVER)
        time.sleep(rng.uniform(0.0, 0.5))


def wait_for_save(crew: Crew) -> None:
    """Waits for a checkpoint that is being written."""
    deadline = time.monotonic() + _NEVER
    while not any(entry.name.endswith(".writing") for entry in _entries(crew.workdir / "checkpoints")):
        if crew.code is not None or time.monotonic() > deadline:
            raise RunOverError
        time.sleep(0.001)


def _entries(path: pathlib.Path) -> list[os.DirEntry]:
    try:
        return list(os.scandir(path))
    except OSError:
        return []


def inflict(crew: Crew, name: str, phase: str, rng: random.Random, since: int, limit: float) -> Outcome:
    """Causes one fault in a training, and waits until the training continues.

    Args:
        crew: the training.
        name: of `KINDS`.
        phase: of the training.
        rng: for random times and workers.
        since: the first line of the current start.
        limit: the most seconds between the fault and the next step.

    Raises:
        RunOverError: the training has ended before the fault could happen.
    """
    kind, outcome = KINDS[name], Outcome(kind=name, phase=phase)
    wait_for_phase(crew, phase, rng, since)
    if crew.code is not None or (name in OF_THE_DISK and crew.steps_left() < 2 * SAVE_STEPS):
        raise RunOverError
    mark = len(crew.lines)
    started = time.monotonic()
    try:
        undo = kind.strike(crew, rng)
    except ProcessLookupError:
        raise RunOverError from None
    try:
        _follow(crew, kind, outcome, mark, started)
    except RunOverError:
        # It came too late to have an effect, or when the last worker ended.
        if not any(re.search(_OVER, text) for _, text in crew.lines):
            outcome.violation = f"the run ended with {crew.code}"
    except TimeoutError as error:
        outcome.violation = str(error)
    finally:
        if undo is not None:
            undo()
    if outcome.recovery is not None and outcome.recovery > limit:
        outcome.violation = f"{outcome.recovery:.1f} s until the next step"
    return outcome


def _follow(crew: Crew, kind: Kind, outcome: Outcome, mark: int, started: float) -> None:
    if kind.seen is not None:
        number, _ = crew.find(kind.seen, mark, _NEVER)
        outcome.detection = crew.lines[number][0] - started
    else:
        mark = len(crew.lines)
    if kind.restarts:
        mark, _ = crew.find(f"{STARTS}|{_OVER}", mark, _NEVER)
    number, _ = crew.find(f"{REPORT}|{_OVER}", mark, _NEVER)
    outcome.recovery = crew.lines[number][0] - started
