"""The supervisor of several workers on this machine: starts them, and restarts them after one is lost.

`python -m tfdist.launch --workers=4 -- --config=configs/digits.py` trains a config: the flags after `--` are those of
tfdist.main, for every worker. `python -m tfdist.launch --workers=4 -- my_fit.py --its=flags` runs a script; also
`-- -m MODULE ...` and `-- PROGRAM ...`. `--` may be left out. Each line of output starts with the rank of its worker.

Exit codes are those of the workers: 0 finished, 75 and 78 stopped and saved (run the same command to resume), 1 an
error; and 76 if it gave up restarting. See docs/launch.md.
"""

import dataclasses
import functools
import math
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from absl import flags

from tfdist.checkpoint import directory
from tfdist.cluster import interruption
from tfdist.cluster.control import keys
from tfdist.cluster.devices import host_gpus
from tfdist.config import flags as config_flags
from tfdist.config import tensorflow_log
from tfdist.config.command_line import closed_streams
from tfdist.launch import command_line, local_workers, processes

_SUCCESS = (0, *interruption.EXITS_SAVED)
# Exit codes after which workers are not restarted, whatever was saved: a second Ctrl-C, and replicas that differ.
_FINAL = (130, interruption.EXIT_MISMATCH)
# After exit code 76: seconds until the other workers are stopped, so that the failure that caused it is seen.
_SYMPTOM_SECONDS = 3.0
# After the first worker has finished, or ended as asked: seconds until the others are stopped.
_LEAVE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """The end of one attempt, of all its workers."""

    # The exit code of the run; negative: a worker was killed by that signal.
    code: int
    # The first failure, in words; "" if no worker failed.
    cause: str = ""


def run_config(arguments: list[str], _: list[str]) -> int:
    """Trains a config, given the flags of tfdist.main, and restarts after failures; returns the exit code."""
    # The supervisor restarts the workers itself, so they must not requeue the job.
    command = [sys.executable, "-m", "tfdist.main", *arguments, "--config.cluster.requeue=false"]
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    return start(command, lambda: [workdir], on_cpu=flags.FLAGS["config"].value.cluster.gpus == 0)


def run_script(command: list[str], _: list[str]) -> int:
    """Runs a script or another program, and restarts it after failures; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="tfdist-launch-") as folder:
        noted = Path(folder, "workdirs")
        os.environ[directory.WORKDIRS_VARIABLE] = str(noted)
        return start(command, lambda: directory.noted_workdirs(noted), on_cpu=False)


def start(command: list[str], workdirs: Callable[[], list[Path]], *, on_cpu: bool) -> int:
    """Starts the workers and restarts them after failures; returns the exit code."""
    if sys.platform != "linux":
        sys.exit("tfdist.launch: several workers on a machine need Linux. Without it, use python -m tfdist.main.")
    try:
        note = local_workers.refuse_other_launchers(os.environ)
        gpus = () if on_cpu else host_gpus.assigned_gpus(os.environ)
        gpus_by_rank = local_workers.divide_gpus(gpus, flags.FLAGS.workers)
    except ValueError as error:
        sys.exit(f"tfdist.launch: {error}")
    tensorflow_log.announce()
    with processes.open_group() as group:
        unused = len(gpus) - sum(map(len, gpus_by_rank))
        if note or unused:
            group.log(note or f"{unused} of {len(gpus)} GPUs are unused: they cannot be divided evenly.")
        return supervise(group, command, workdirs, gpus_by_rank)


def supervise(
    group: processes.ProcessGroup,
    command: list[str],
    workdirs: Callable[[], list[Path]],
    gpus_by_rank: list[tuple[str, ...]],
) -> int:
    """Runs attempts until one succeeds, is stopped, or fails for good; returns the exit code.

    A new checkpoint in the `workdirs` of the runs so far counts as progress. The GPUs of each worker are empty on a
    machine without GPUs.
    """
    # Kept open: the ports stay reserved across restarts.
    reserved = local_workers.reserve_ports(len(gpus_by_rank))
    ports = [sock.getsockname()[1] for sock in reserved]
    environment = {keys.VARIABLE: secrets.token_hex(32)} | os.environ
    causes: list[str] = []
    while True:
        before = checkpoints(workdirs())
        result = attempt(group, command, local_workers.environments(environment, ports, gpus_by_rank))
        if group.forwarded:
            return stopped_exit_code(group, result, checkpoints(workdirs()))
        if result.code in _SUCCESS:
            if result.cause:
                group.log(f"{result.cause}; everything was saved before.")
            return result.code
        causes.append(result.cause)
        progressed = not before.issuperset(checkpoints(workdirs()))
        lost = result.code < 0 or result.code == interruption.EXIT_PEER_LOST
        if not lost and (result.code in _FINAL or not progressed):
            group.log(f"{result.cause}. Not restarted: the error would recur.")
            return result.code
        if len(causes) > flags.FLAGS.max_restarts:
            last = f" Last cause: {causes[-1]}." if causes[-1] != causes[0] else ""
            group.log(f"gave up after {len(causes) - 1} restart(s). First cause: {causes[0]}.{last}")
            return interruption.EXIT_PEER_LOST if lost else result.code
        restart = f"Restart {len(causes)} of {flags.FLAGS.max_restarts}"
        group.log(f"{result.cause}. {restart}, {from_where(workdirs())}.")


def attempt(group: processes.ProcessGroup, command: list[str], environments: Sequence[dict[str, str]]) -> AttemptResult:
    """Starts all workers once and waits until all have exited."""
    workers = [group.start(command, env, rank) for rank, env in enumerate(environments)]
    codes: dict[int, int] = {}  # In the order of the exits.
    before_sigterm: dict[int, int] | None = None
    killed: list[int] = []
    asked_at, stop_at, kill_at = math.inf, math.inf, math.inf
    while len(codes) < len(workers):
        for number in group.wait():
            group.send(number)
            asked_at = min(asked_at, time.monotonic())
            if group.forwarded.count(signal.SIGINT) > 1:
                stop_at = 0.0
        now = time.monotonic()
        for rank, code in group.pop_exited():
            codes[rank] = code
            # A second signal would interrupt what the others do after the first: they save.
            as_asked = code in _SUCCESS or (group.forwarded and -code in processes.STOP_SIGNALS)
            seconds = _LEAVE_SECONDS if as_asked else 0.0
            stop_at = min(stop_at, now + (_SYMPTOM_SECONDS if code == interruption.EXIT_PEER_LOST else seconds))
        if now > asked_at + flags.FLAGS.grace_seconds and any(group.suspended()):
            stop_at = now
        if now >= stop_at and before_sigterm is None:
            before_sigterm, kill_at = dict(codes), now + flags.FLAGS.grace_seconds
            group.send(signal.SIGTERM)
        if (now >= kill_at or (before_sigterm is not None and all(group.suspended()))) and not killed:
            killed = [rank for rank in range(len(workers)) if rank not in codes]
            group.send(signal.SIGKILL)
    group.drain()
    return summarize(codes if before_sigterm is None else before_sigterm, killed)


def summarize(codes: dict[int, int], killed: Sequence[int]) -> AttemptResult:
    """Finds the first failure of an attempt.

    `codes` are rank -> exit code of the workers that exited before SIGTERM was sent, in this order, negative: killed by
    a signal; `killed` are the ranks of those that did not exit after it.
    """
    failed = [rank for rank, code in codes.items() if code not in _SUCCESS]
    hanging = f"worker {', '.join(map(str, killed))} did not answer SIGTERM and was killed" if killed else ""
    if not failed:
        return AttemptResult(code=max(codes.values()) if codes else -signal.SIGKILL, cause=hanging)
    # Exit code 76, another worker was lost, is only a symptom.
    rank = next((rank for rank in failed if codes[rank] != interruption.EXIT_PEER_LOST), failed[0])
    code = codes[rank]
    if code < 0:
        names = {each.value: each.name for each in signal.Signals}
        how = f"was killed by {names.get(-code, f'signal {-code}')}"
    elif code == interruption.EXIT_PEER_LOST:
        how = f"lost another worker (exit code {code})"
    else:
        how = f"ended with exit code {code}"
    cause = f"worker {rank} {how}" + (f"; {hanging}" if hanging else "")
    return AttemptResult(code=code, cause=cause)


def stopped_exit_code(group: processes.ProcessGroup, result: AttemptResult, saved: Collection[tuple]) -> int:
    """Returns the exit code after a stop signal to the supervisor, and logs the reason if the run was not saved."""
    if result.code in _SUCCESS:
        return result.code
    if group.forwarded.count(signal.SIGINT) > 1:
        group.log("interrupted before the run was saved. Run the same command to resume from the newest checkpoint.")
        return 130
    if result.code == 130 or -result.code in group.forwarded or result.code == -signal.SIGTERM:
        if "config" not in flags.FLAGS:  # A script, which may be doing anything.
            group.log(f"stopped; {'it resumes from its newest checkpoint' if saved else 'there is no checkpoint'}.")
            return interruption.EXIT_STOPPED
        left = f"the checkpoint of step {max(saved)[1]} is unchanged" if saved else "nothing to save"
        group.log(f"stopped before training started: {left}. Run the same command to start.")
        return interruption.EXIT_STOPPED
    group.log(f"{result.cause}. Run the same command to resume from the newest checkpoint.")
    return interruption.EXIT_PEER_LOST if result.code < 0 else result.code


def checkpoints(workdirs: Sequence[Path]) -> set[tuple[str, int, int]]:
    """Returns workdir, step and time of each checkpoint. A new one counts, not the newest, which may be damaged."""
    return {(str(each), *found) for each in workdirs for found in directory.written(each / "checkpoints")}


def from_where(workdirs: Sequence[Path]) -> str:
    """Returns from where a restart continues, in words."""
    found = {workdir: directory.newest_step(workdir / "checkpoints") for workdir in workdirs}
    saved = [(workdir, step) for workdir, step in found.items() if step is not None]
    if not saved:
        return "from the beginning: there is no checkpoint"
    workdir, step = saved[-1]
    return f"from the checkpoint of step {step}" + (f" in {workdir}" if len(found) > 1 else "")


def main() -> None:
    """Runs the command line, and exits the process."""
    closed_streams.open_closed()
    launch_flags, words = command_line.divide(sys.argv[1:])
    if of_main := command_line.flags_of_main(words):
        more, words = command_line.divide(of_main)
        launch_flags += more
    command = command_line.worker_command(words)
    command_line.define_flags()
    if not command:
        config_flags.define_run_flags()
    sys.argv[1:] = launch_flags if command else [*launch_flags, *words]
    body = functools.partial(run_script, command) if command else functools.partial(run_config, words)
    usage = "python -m tfdist.launch --workers=N [options] -- --config=FILE [flags of the run] | SCRIPT.py [its flags]"
    config_flags.run_main(body, purpose=__doc__, usage=usage, parser=command_line.parse)


if __name__ == "__main__":
    main()
