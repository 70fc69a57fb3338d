"""Trains in child processes, for the tools that compare runs. Imports no TensorFlow."""

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.discovery.launchers import slurm
from tfdist.launch import local_workers, processes
from tfdist.report import files, metrics_file, read_back

# Replicas are workers on this machine, devices of one process (GPUs, or logical CPU devices), or tasks of a Slurm step.
BACKENDS = ("auto", "processes", "devices", "slurm")
# Fields for a run without evaluations, checkpoints and callbacks: a callback may need an evaluation, or stop the run.
BARE = {
    "data.evaluation_split": "none",
    "callbacks": "[]",
    "report.tensorboard": "false",
    "checkpoint.every.epochs": "none",
    "checkpoint.every.steps": "none",
    "checkpoint.every.after": "none",
    "checkpoint.best_metric": "none",
    "checkpoint.export": "false",
}


def add_by(parser: argparse.ArgumentParser) -> None:
    """Adds the flag --by."""
    meaning = (
        "What a replica is: a process, a device of one process, or a Slurm task. Default: a process; in Slurm, a task."
    )
    parser.add_argument("--by", default="auto", choices=BACKENDS, help=meaning)


def choose_backend(name: str, env: Mapping[str, str]) -> str:
    """Returns the backend of a name of `BACKENDS`: for "auto", "slurm" within an allocation, else "processes".

    Raises:
        ValueError: "slurm" outside of an allocation, or a launcher started several of this process.
    """
    if name == "slurm" and not slurm.in_allocation(env):
        raise ValueError("--by=slurm starts steps with srun and needs an allocation: run it within sbatch or salloc.")
    if name == "auto":
        name = "slurm" if slurm.in_allocation(env) else "processes"
    if name != "slurm":
        local_workers.check_single_process(env)
    return name


def train(
    arguments: Sequence[str], *, replicas: int, backend: str, workdir: Path, log: Path, fresh: bool = False
) -> None:
    """Trains on `replicas` replicas, from the newest checkpoint in `workdir` on; writes its output to `log`.

    `fresh`: `workdir` is removed first.

    Raises ValueError, with the end of the log, if it fails, or if there are fewer GPUs than replicas.
    """
    arguments = [*arguments, f"--workdir={workdir}"]
    gpus = local_workers.first_gpus(os.environ, replicas) if backend != "slurm" else {}
    main = [sys.executable, "-m", "tfdist.main", *arguments]
    if backend == "slurm":
        command = ["srun", f"--ntasks={replicas}", "--kill-on-bad-exit=0", *main]
    elif backend == "devices":
        on_cpu = [] if gpus else [f"--config.cluster.logical_devices={replicas}"]
        command = [*main, *on_cpu]
    else:
        launch = [sys.executable, "-m", "tfdist.launch", f"--workers={replicas}", "--max_restarts=0"]
        command = [*launch, "--", *arguments]
    code = run_command(command, log, dict(os.environ) | gpus, fresh=workdir if fresh else None)
    if code:
        raise ValueError(
            f"The training on {replicas} replica(s) exited with code {code}; the end of {log}:\n{end_of(log)}"
        )


def run_command(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None = None,
    *,
    shown: bool = False,
    fresh: Path | None = None,
) -> int:
    """Runs a command with its output in `log`; returns its exit code. It gets SIGTERM if this process exits first.

    Args:
        shown: also print the output as it comes, and append to `log` instead of overwriting it.
        fresh: a folder that is removed first: the results of an earlier command.

    Raises:
        ValueError: a command that still runs writes to `log`.
        OSError: `log` cannot be written.
    """
    files.make_workdir(log.parent)
    bound = processes.die_with_parent(os.getpid(), signal.SIGTERM) if sys.platform == "linux" else None
    with processes.cleanup_on_sigterm(), log.open("ab") as file:
        try:
            # The command inherits the lock, and keeps it until it ends.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):  # Other errors mean that the file system has no locks.
                text = f"{log} is in use by another command: wait for its end, or choose another --workdir."
                raise ValueError(text) from None
        if not shown:
            file.truncate(0)
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if shown else file,
            stderr=subprocess.STDOUT,
            preexec_fn=bound,
        )
        try:
            for part in process.stdout or ():
                file.write(part)
                file.flush()
                print(part.decode(errors="replace"), end="", flush=True)
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def reports(workdir: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Returns the records of one kind in the metrics.jsonl of a run, in order."""
    records = read_back.read_records(workdir / metrics_file.METRICS)
    return [record for record in records if record.get("kind") == kind]


def last_report(workdir: Path, kind: str) -> dict[str, Any]:
    """Returns the last record of one kind in the metrics.jsonl of a run; {} without one."""
    return [{}, *reports(workdir, kind)][-1]


def end_of(log: Path) -> str:
    """Returns the last lines of a log, indented."""
    return "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])
