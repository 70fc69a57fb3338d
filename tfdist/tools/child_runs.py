"""Trainings of one config on several numbers of replicas, one after another, each in processes of its own.

Used by the commands that compare them. Imports no TensorFlow.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.discovery import slurm
from tfdist.launch import local_workers, processes
from tfdist.report import metrics_file

WAYS = ("auto", "processes", "devices", "slurm")


def choose_way(way: str, env: Mapping[str, str]) -> str:
    """Returns how replicas are started: for "auto", as steps of the Slurm allocation where there is one.

    Raises:
        ValueError: "slurm" is asked for outside of an allocation, or a launcher has started this process among others.
    """
    if way == "slurm" and not slurm.in_allocation(env):
        raise ValueError("--by=slurm starts steps with srun, and needs an allocation: call it from sbatch or salloc.")
    if way == "auto":
        way = "slurm" if slurm.in_allocation(env) else "processes"
    if way != "slurm":
        local_workers.refuse_other_launchers(env)
    return way


def train(arguments: Sequence[str], *, replicas: int, way: str, workdir: Path, log: Path) -> None:
    """Trains on so many replicas, from the newest checkpoint in `workdir` on; what it says goes to `log`.

    Args:
        arguments: flags of tfdist.main.
        replicas: how many; with "processes" and "slurm" each is a worker of its own.
        way: what `choose_way` has returned.
        workdir: of this training.
        log: the file, replaced.

    Raises:
        ValueError: there are fewer GPUs than replicas, or the training has failed; shows the end of its log.
    """
    arguments = [*arguments, f"--workdir={workdir}"]
    gpus = local_workers.first_gpus(os.environ, replicas) if way != "slurm" else {}
    main = [sys.executable, "-m", "tfdist.main", *arguments]
    if way == "slurm":
        command = ["srun", f"--ntasks={replicas}", "--kill-on-bad-exit=0", *main]
    elif way == "devices":
        on_cpu = [] if gpus else [f"--config.cluster.logical_devices={replicas}"]
        command = [*main, *on_cpu]
    else:
        launch = [sys.executable, "-m", "tfdist.launch", f"--workers={replicas}", "--max_restarts=0"]
        command = [*launch, "--", *arguments]
    code = run(command, log, dict(os.environ) | gpus)
    if code:
        end = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-12:])
        raise ValueError(f"The training on {replicas} replica(s) ended with exit code {code}; the end of {log}:\n{end}")


def run(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> int:
    """Runs a command to its end, its output in `log`; it gets SIGTERM when this process ends before it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    bound = processes.die_with_parent(os.getpid(), signal.SIGTERM) if sys.platform == "linux" else None
    with processes.cleanup_on_sigterm(), log.open("wb") as file:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, preexec_fn=bound
        )
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def reports(workdir: Path, kind: str = "train") -> list[dict[str, Any]]:
    """The lines of one kind in the metrics.jsonl of a training, in order."""
    lines = (json.loads(line) for line in (workdir / metrics_file.METRICS).read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]
