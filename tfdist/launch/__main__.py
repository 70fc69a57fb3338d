"""The supervisor of several workers on this machine: starts them, and restarts them after one is lost.

`python -m tfdist.launch --workers=4 -- configs/digits.py` trains a config: the words after `--` are those of
tfdist.main, for every worker. `-- my_script.py --its=flags` runs a script over all workers, by tfdist.run, unless it
connects them itself with tfdist.connect(); `-- run --workdir=DIR my_script.py` also saves it. `-- -m MODULE ...` and
`-- PROGRAM ...` are started as they are. Each line of output starts with the rank of its worker.

Exit codes are those of the workers: 0 finished; 1 an error; 75 stopped and saved (run the same command to resume); 77
replicas differ. 76: it gave up restarting; 130: Ctrl-C twice. See docs/launchers.md.
"""

import argparse
import math
import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app

from tfdist.cluster import interruption
from tfdist.cluster.control import keys
from tfdist.cluster.devices import host_gpus
from tfdist.config import closed_streams, tensorflow_log, tool_flags
from tfdist.launch import local_workers, processes

OWN_FLAGS = ("workers", "max_restarts")
_HELP = {"h", "help"}
_SUCCESS = (0, interruption.EXIT_STOPPED)
# Seconds between SIGTERM and SIGKILL when workers are stopped.
GRACE_SECONDS = 10.0
# Seconds from exit code 76 until the other workers are stopped, because the failure that caused it may be seen later.
_SYMPTOM_SECONDS = 3.0
# After the first worker has finished, or was stopped by a signal: seconds until the others are stopped.
_LEAVE_SECONDS = 60.0


def start(command: list[str], args: argparse.Namespace) -> int:
    """Starts the workers and restarts them after one is lost; returns the exit code."""
    if sys.platform != "linux":
        sys.exit("tfdist.launch: several workers on a machine need Linux. Without it, use python -m tfdist.main.")
    config = getattr(args, "config", None)
    try:
        note = local_workers.check_single_process(os.environ)
        gpus = () if config and config.cluster.gpus == 0 else host_gpus.assigned_gpus(os.environ)
        gpus_by_rank = local_workers.divide_gpus(gpus, args.workers)
    except ValueError as error:
        sys.exit(f"tfdist.launch: {error}")
    tensorflow_log.announce()
    with processes.open_group() as group:
        unused = len(gpus) - sum(map(len, gpus_by_rank))
        if note or unused:
            group.log(note or f"{unused} of {len(gpus)} GPUs are unused: they cannot be divided evenly.")
        return supervise(group, command, gpus_by_rank, args.max_restarts)


def supervise(
    group: processes.ProcessGroup,
    command: list[str],
    gpus_by_rank: list[tuple[str, ...]],
    max_restarts: int,
) -> int:
    """Runs attempts until one succeeds, is stopped or fails with an error, or none is left; returns the exit code.

    `gpus_by_rank` has an empty tuple for each worker on a machine without GPUs.
    """
    # Kept open: the ports stay reserved across restarts.
    reserved = local_workers.reserve_ports(len(gpus_by_rank))
    addresses = [f"localhost:{sock.getsockname()[1]}" for sock in reserved]
    environment = {keys.VARIABLE: secrets.token_hex(32)} | os.environ
    causes: list[str] = []
    while True:
        code, cause = attempt(group, command, local_workers.environments(environment, addresses, gpus_by_rank))
        if code in _SUCCESS:
            if cause:
                group.log(f"{cause}; everything was saved before.")
            return code
        if group.forwarded:
            return stopped_exit_code(group, code, cause)
        causes.append(cause)
        if code >= 0 and code != interruption.EXIT_PEER_LOST:
            group.log(f"{cause}. Not restarted: the error would recur.")
            return code
        if len(causes) > max_restarts:
            last = f" Last cause: {causes[-1]}." if causes[-1] != causes[0] else ""
            group.log(f"gave up after {len(causes) - 1} restart(s). First cause: {causes[0]}.{last}")
            return interruption.EXIT_PEER_LOST
        group.log(f"{cause}. Restart {len(causes)} of {max_restarts}, from the newest checkpoint.")


def attempt(
    group: processes.ProcessGroup, command: list[str], environments: Sequence[dict[str, str]]
) -> tuple[int, str]:
    """Starts all workers once and waits until all have exited; returns what `summarize` returns."""
    workers = [group.start(command, env, rank) for rank, env in enumerate(environments)]
    codes: dict[int, int] = {}  # In the order of the exits.
    before_sigterm: dict[int, int] | None = None
    killed: list[int] = []
    stop_at, kill_at = math.inf, math.inf
    while len(codes) < len(workers):
        for number in group.wait():
            group.send(number)
            if group.forwarded.count(signal.SIGINT) > 1:
                stop_at = 0.0
        now = time.monotonic()
        for rank, code in group.pop_exited():
            codes[rank] = code
            # A second signal would interrupt what the others do after the first: they save.
            as_requested = code in _SUCCESS or (group.forwarded and -code in processes.STOP_SIGNALS)
            seconds = _LEAVE_SECONDS if as_requested else 0.0
            stop_at = min(stop_at, now + (_SYMPTOM_SECONDS if code == interruption.EXIT_PEER_LOST else seconds))
        if now >= stop_at and before_sigterm is None:
            before_sigterm, kill_at = dict(codes), now + GRACE_SECONDS
            group.send(signal.SIGTERM)
        if now >= kill_at and not killed:
            killed = [rank for rank in range(len(workers)) if rank not in codes]
            group.send(signal.SIGKILL)
    group.drain()
    return summarize(codes if before_sigterm is None else before_sigterm, killed)


def summarize(codes: dict[int, int], killed: Sequence[int]) -> tuple[int, str]:
    """Returns the exit code of an attempt, negative after a signal, and the first failure in words, or "".

    `codes` are rank -> exit code of the workers that exited before SIGTERM was sent, in this order; `killed` are the
    ranks of those that did not exit after it.
    """
    failed = [rank for rank, code in codes.items() if code not in _SUCCESS]
    hanging = f"worker {', '.join(map(str, killed))} did not answer SIGTERM and was killed" if killed else ""
    if not failed:
        return max(codes.values(), default=-signal.SIGKILL), hanging
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
    return code, f"worker {rank} {how}" + (f"; {hanging}" if hanging else "")


def stopped_exit_code(group: processes.ProcessGroup, code: int, cause: str) -> int:
    """Returns the exit code after a stop signal to the supervisor, if the workers do not say that they have saved."""
    again = "Run the same command to resume from the newest checkpoint."
    if group.forwarded.count(signal.SIGINT) > 1:
        group.log(f"interrupted before the run was saved. {again}")
        return 130
    if code == 130 or -code in (*group.forwarded, signal.SIGTERM):
        group.log(f"stopped before training started: nothing was saved by this start. {again}")
        return interruption.EXIT_STOPPED
    group.log(f"{cause}. {again}")
    return interruption.EXIT_PEER_LOST if code < 0 else code


def divide(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divides a command line at its first "--" into the launcher's flags and what every worker runs."""
    place = [*words, "--"].index("--")
    return [*words[:place]], [*words[place + 1 :]]


def worker_command(words: Sequence[str]) -> list[str]:
    """Returns the command of a worker for `SCRIPT.py ...`, `-m MODULE ...` or `PROGRAM ...`; [] for a config."""
    first = words[0] if words else "--config"
    if first == "-m":
        return [sys.executable, *words]
    if first == "run":
        return [sys.executable, "-m", "tfdist.run", *words[1:]]
    if first.startswith("-") or os.path.isdir(first):  # The workdir of a run has a config.
        return []
    if file := tool_flags.config_named(first).partition(":")[0]:
        if not os.path.isfile(file):
            sys.exit(f"tfdist.launch: there is no file {os.path.abspath(file)}.")
        if is_config(file):
            return []
        return [sys.executable, *([] if connects(file) else ["-m", "tfdist.run"]), *words]
    if shutil.which(first) is None:
        sys.exit(
            f"tfdist.launch: there is no program {first!r}. After the launcher's flags, write a config, a script, "
            "-m MODULE, or a program. A command of tfdist is -m tfdist COMMAND."
        )
    return list(words)


def is_config(file: str) -> bool:
    """Returns True if a Python file exists and defines or imports `get_config` at its top level."""
    text = Path(file).read_bytes() if os.path.isfile(file) else b""
    found = rb"^(def get_config\(|get_config\b.*=|from .* import (\([^)]*|.*)\bget_config\b)"
    return re.search(found, text, re.MULTILINE) is not None


def connects(file: str) -> bool:
    """Returns whether a script calls tfdist.connect; if it does not, tfdist.run starts it."""
    text = Path(file).read_bytes()
    return re.search(rb"\btfdist\.connect\(|^from tfdist import .*\bconnect\b", text, re.MULTILINE) is not None


def main() -> None:
    """Runs the command line, and exits the process."""
    closed_streams.reopen()
    own, words = divide(sys.argv[1:])
    command = [] if _HELP.intersection(each.lstrip("-") for each in own) else worker_command(words)
    parser = tool_flags.Parser("python -m tfdist.launch", f"{__doc__}")
    parser.usage = "python -m tfdist.launch --workers=N [options] -- CONFIG [flags of the run] | SCRIPT.py [its flags]"
    at_least = tool_flags.at_least
    parser.add_argument("--workers", metavar="N", type=at_least(1), help="Number of workers to start on this machine.")
    meaning = "Number of restarts before giving up. Default: 3."
    parser.add_argument("--max_restarts", metavar="N", type=at_least(0), default=3, help=meaning)
    if not command:
        parser.add_run_flags()

    def run(args: argparse.Namespace) -> int:
        if args.workers is None:
            sys.exit("tfdist.launch: set the number of workers to start, such as --workers=2")
        # The supervisor restarts the workers itself, so they must not requeue the job.
        training = [sys.executable, "-m", "tfdist.main", *words, "--config.cluster.requeue=false"]
        return start(command or training, args)

    def parse(_: list[str]) -> argparse.Namespace:
        misplaced = [word for word in words if re.match(rf"--({'|'.join(OWN_FLAGS)})\b", word)]
        if misplaced and not command:
            sys.exit(f"tfdist.launch: {misplaced[0]} is a flag of the launcher: write it before the --.")
        if not words and not _HELP.intersection(each.lstrip("-") for each in own):
            sys.exit("tfdist.launch: after --, write what the workers run, as in tfdist launch --workers=2 -- digits")
        return parser.read([*own, *([] if command else words)])

    app.run(run, flags_parser=parse)


if __name__ == "__main__":
    main()
