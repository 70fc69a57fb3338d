"""Starts the workers of a run on this machine, and starts them again when one of them is lost.

`python -m tfdist.launch --workers=4 -- --config=configs/digits.py`. What follows the lone `--` are the flags of
tfdist.main, for every worker. Each line of their output begins with the worker's rank.

It ends with what the workers ended with: 0 finished, 75 asked to stop and saved (start it again to go on), 1 something
is wrong; and with 76 when it gave up restarting. See docs/launch.md.
"""

import dataclasses
import math
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from tfdist import config, main
from tfdist.cluster import interruption
from tfdist.config import flags as config_flags
from tfdist.launch import local_workers, processes

_WORKERS = flags.DEFINE_integer("workers", None, "How many workers to start on this machine.", lower_bound=1)
_MAX_RESTARTS = flags.DEFINE_integer(
    "max_restarts", 3, "How often to start all workers again after one was lost.", lower_bound=0
)
_MIN_WORKERS = flags.DEFINE_integer(
    "min_workers", None, "Go on with as few workers as this where more fail again and again.", lower_bound=1
)
_GRACE_SECONDS = flags.DEFINE_float(
    "grace_seconds", 10.0, "How long a worker may take to end after SIGTERM before SIGKILL.", lower_bound=0.0
)
flags.adopt_module_key_flags(main)  # --help shows both.

_OWN = ("workers", "max_restarts", "min_workers", "grace_seconds")
_GOOD = (0, interruption.EXIT_STOPPED)
# How many starts in a row have to fail without a new checkpoint before fewer workers are tried.
_FRUITLESS_STARTS = 2
# How long the cause may take to show after a worker has noticed that another one is lost, in seconds.
_SYMPTOM_SECONDS = 3.0
# How long the others may take after the first has left: all have passed the last barrier then.
_LEAVE_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How all workers of one start came to their end."""

    # What tfdist.main's exit code would be for the run as a whole; negative: a worker was killed by that signal.
    code: int
    # The worker that failed first, and how; empty where none failed.
    cause: str = ""
    culprit: int = 0


def parse(argv: list[str]) -> list[str]:
    """Parses the launcher's flags and those of tfdist.main; returns the program's name and the latter alone.

    Ends the process with one message where something is wrong.
    """
    if {"--help", "--helpfull", "--helpshort", "-help", "-?"} & set(argv):
        return config_flags.parse(argv)
    if "--" not in argv:
        sys.exit("Write the workers' flags behind a lone --: python -m tfdist.launch --workers=2 -- --config=...")
    split = argv.index("--")
    # --max-restarts is what other launchers call it, --max_restarts how absl writes flags.
    ours = [re.sub(r"^--[\w-]+", lambda name: "--" + name[0][2:].replace("-", "_"), flag) for flag in argv[1:split]]
    theirs = argv[split + 1 :]
    for arguments, side, foreign in ((ours, "behind", _main_flags()), (theirs, "before", _OWN)):
        for argument in arguments:
            name = re.match(r"--?(?:no)?(\w+)", argument)
            if name and name[1] in foreign:
                sys.exit(f"--{name[1]} belongs {side} the lone --. Received: {' '.join(argv[1:])}")
    config_flags.parse([argv[0], *ours, *theirs])
    if _WORKERS.value is None:
        sys.exit("Say how many workers to start, such as --workers=2")
    if (_MIN_WORKERS.value or 1) > _WORKERS.value:
        sys.exit(f"--min_workers={_MIN_WORKERS.value} is more than --workers={_WORKERS.value}.")
    return [argv[0], *theirs]


def _main_flags() -> set[str]:
    return {flag.name for flag in flags.FLAGS.get_flags_for_module(main.__name__)}


def run(argv: list[str]) -> int:
    """Starts the workers, again and again where that helps; returns the exit code."""
    if sys.platform != "linux":
        sys.exit("tfdist.launch: several workers on a machine need Linux. Without it, use python -m tfdist.main.")
    # The launcher starts lost workers again itself.
    command = [sys.executable, "-m", main.__name__, *argv[1:], "--config.cluster.requeue=false"]
    workdir = Path(flags.FLAGS.workdir or f"runs/{config_flags.config_name()}").expanduser()
    try:
        note = local_workers.refuse_other_launchers(os.environ)
        gpus = local_workers.gpus(os.environ)
        shares = local_workers.divide_gpus(gpus, _WORKERS.value)
    except ValueError as error:
        sys.exit(f"tfdist.launch: {error}")
    with processes.open_group() as watch:
        unused = len(gpus) - sum(map(len, shares))
        if note or unused:
            watch.say(note or f"{unused} of {len(gpus)} GPUs stay unused: they cannot be divided evenly.")
        return supervise(watch, command, workdir, shares)


def supervise(watch: processes.ProcessGroup, command: list[str], workdir: Path, shares: list[tuple[str, ...]]) -> int:
    """Starts a worker for each of `shares` of the GPUs, and all again after a failure; returns the exit code."""
    sockets = local_workers.reserve_ports(len(shares))
    ports = [reserved.getsockname()[1] for reserved in sockets]
    causes: list[str] = []
    fruitless = 0
    while True:
        before = newest_step(workdir)
        ended = attempt(watch, command, local_workers.environments(os.environ, ports, shares))
        if watch.asked:
            return asked_to_stop(watch, ended)
        if ended.code in _GOOD:
            if ended.cause:
                watch.say(f"{ended.cause}; all was saved before.")
            return ended.code
        causes.append(ended.cause)
        progress = newest_step(workdir) > before
        fruitless = 0 if progress else fruitless + 1
        lost = ended.code < 0 or ended.code == interruption.EXIT_PEER_LOST
        if not lost and (ended.code == 130 or not progress):
            watch.say(f"{ended.cause}. Not started again: what it says would come again.")
            return ended.code
        if len(causes) > _MAX_RESTARTS.value:
            return give_up(watch, causes, interruption.EXIT_PEER_LOST if lost else ended.code)
        if fruitless >= _FRUITLESS_STARTS and _MIN_WORKERS.value is not None:
            fewer = next_smaller(flags.FLAGS["config"].value, shares, _MIN_WORKERS.value)
            if fewer < len(shares):
                shares = without(shares, ended.culprit, fewer)
                fruitless = 0
        step = newest_step(workdir)
        watch.say(
            f"{ended.cause}. Restart {len(causes)} of {_MAX_RESTARTS.value}, with {len(shares)} worker(s), from "
            + (f"the checkpoint of step {step}." if step >= 0 else "the beginning: there is no checkpoint yet.")
        )


def attempt(watch: processes.ProcessGroup, command: list[str], environments: Sequence[dict[str, str]]) -> Ended:
    """Starts all workers once and follows them until none is left."""
    workers = [watch.start(command, env, rank) for rank, env in enumerate(environments)]
    codes: dict[int, int] = {}  # In the order in which they ended.
    by_themselves: dict[int, int] | None = None
    hung: list[int] = []
    end_at, kill_at = math.inf, math.inf
    while len(codes) < len(workers):
        for number in watch.wait():
            watch.send(number)
            if watch.asked.count(signal.SIGINT) > 1:
                end_at = 0.0
        now = time.monotonic()
        for rank, code in watch.ended():
            codes[rank] = code
            wait = {interruption.EXIT_PEER_LOST: _SYMPTOM_SECONDS}.get(code, 0.0)
            end_at = min(end_at, now + (_LEAVE_SECONDS if code in _GOOD else wait))
        if now >= end_at and by_themselves is None:
            by_themselves, kill_at = dict(codes), now + _GRACE_SECONDS.value
            watch.send(signal.SIGTERM)
        if (now >= kill_at or (by_themselves is not None and watch.all_stopped())) and not hung:
            hung = [rank for rank in range(len(workers)) if rank not in codes]
            watch.send(signal.SIGKILL)
    watch.drain()
    return judge(codes if by_themselves is None else by_themselves, hung)


def judge(codes: dict[int, int], hung: Sequence[int]) -> Ended:
    """Finds what came first.

    Args:
        codes: rank -> exit code of the workers that ended by themselves, in that order; negative: by a signal.
        hung: the workers that had to be killed, because they did not answer SIGTERM.
    """
    bad = [rank for rank, code in codes.items() if code not in _GOOD]
    silent = f"worker {', '.join(map(str, hung))} did not answer SIGTERM and was killed" if hung else ""
    if not bad:
        code = interruption.EXIT_STOPPED if interruption.EXIT_STOPPED in codes.values() else 0
        return Ended(code=code if codes else -signal.SIGKILL, cause=silent)
    # That another worker was lost is a symptom.
    rank = next((rank for rank in bad if codes[rank] != interruption.EXIT_PEER_LOST), bad[0])
    code = codes[rank]
    if code < 0:
        how = f"was killed by {processes.signal_name(-code)}"
    elif code == interruption.EXIT_PEER_LOST:
        how = f"lost another worker (exit code {code})"
    else:
        how = f"ended with exit code {code}"
    culprit = hung[0] if hung and code == interruption.EXIT_PEER_LOST else rank
    return Ended(code=code, cause=f"worker {rank} {how}" + (f"; {silent}" if silent else ""), culprit=culprit)


def asked_to_stop(watch: processes.ProcessGroup, ended: Ended) -> int:
    """The exit code of a run that the launcher was asked to stop."""
    if ended.code in _GOOD:
        return ended.code
    if watch.asked.count(signal.SIGINT) > 1:
        watch.say("interrupted before the run was saved; the same command goes on from the newest checkpoint.")
        return 130
    if ended.code == 130 or -ended.code in watch.asked or ended.code == -signal.SIGTERM:
        watch.say("stopped before the training began: there was nothing to save. The same command goes on.")
        return interruption.EXIT_STOPPED
    watch.say(f"{ended.cause}. The same command goes on from the newest checkpoint.")
    return interruption.EXIT_PEER_LOST if ended.code < 0 else ended.code


def give_up(watch: processes.ProcessGroup, causes: Sequence[str], code: int) -> int:
    """Says what went wrong first, and last where that was something else; returns `code`."""
    last = f" The last time, {causes[-1]}." if causes[-1] != causes[0] else ""
    watch.say(f"gave up after {len(causes) - 1} restart(s). The first cause: {causes[0]}.{last}")
    return code


def next_smaller(options: config.Config, shares: Sequence[tuple[str, ...]], least: int) -> int:
    """The next smaller number of workers, at least `least`, among whose replicas both batches can be divided.

    Without one, the number of `shares`.
    """
    for workers in range(len(shares) - 1, least - 1, -1):
        replicas = workers * (len(shares[0]) or options.cluster.logical_devices)
        evaluation = options.data.evaluation_batch_size or options.data.batch_size
        pieces = options.train.micro_batches * options.train.local_steps
        if options.data.batch_size % (replicas * pieces) == 0 == evaluation % replicas:
            return workers
    return len(shares)


def without(shares: Sequence[tuple[str, ...]], culprit: int, fewer: int) -> list[tuple[str, ...]]:
    """The shares of `fewer` workers; the GPUs of the one that failed are left out first."""
    return [share for rank, share in enumerate(shares) if rank != culprit][:fewer]


def newest_step(workdir: Path) -> int:
    """The newest step that has a checkpoint, whole or not; -1: none has."""
    names = (re.fullmatch(r"step-(\d+)", path.name) for path in workdir.glob("checkpoints/step-*"))
    return max((int(name[1]) for name in names if name), default=-1)


if __name__ == "__main__":
    app.run(run, flags_parser=parse)
