"""Runs the jobs of a sweep: a given number at a time on this machine, or as one job array of Slurm.

A task of the array is `python -m tfdist.tools.many_runs.sweep_jobs FILE INDEX`: it starts its run with srun.
"""

import contextlib
import dataclasses
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.devices import host_gpus
from tfdist.cluster.discovery import hostlist
from tfdist.launch import local_workers, processes
from tfdist.report import files

# In the workdir of a run: what its processes print, and the exit code of the last one.
LOG, _END = "output.log", "end.json"
# Seconds between two looks at the processes.
_POLL_SECONDS = 0.2
# Cores of a run, where the number of runs at a time is not given.
_CORES = 2
# Seconds until the other workers of a run are killed after the first one has ended, as in the batch file; and until
# squeue must have answered.
_WAIT_SECONDS, _ANSWER_SECONDS = 60, 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A run: its name, its directory, and the command that starts or resumes it."""

    name: str
    workdir: Path
    command: Sequence[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """What a run may use: an environment with its GPUs, or cores of the processor."""

    env: Mapping[str, str]
    share: str
    cores: frozenset[int] = frozenset()


def slots(count: int | None, *, on_cpu: bool) -> list[Slot]:
    """Divides this machine into `count` slots, by default one for each GPU, or for two cores; `on_cpu`: without GPUs.

    Raises ValueError if there are fewer GPUs, or cores.
    """
    gpus = () if on_cpu else host_gpus.assigned_gpus(os.environ)
    if gpus:
        shares = local_workers.divide_gpus(gpus, count or len(gpus), "--max_at_once")
        envs = [local_workers.environments(os.environ, [], [share])[0] for share in shares]
        return [Slot(env, f"{len(share)} GPU(s)") for env, share in zip(envs, shares, strict=True)]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    count = count or max(1, len(cores) // _CORES)
    if cores and count > len(cores):
        raise ValueError(
            f"--max_at_once={count}, but this machine has {len(cores)} cores: choose at most {len(cores)}."
        )
    edges = [index * len(cores) // count for index in range(count + 1)]
    env = local_workers.environments(os.environ, [], [()])[0]
    shares = [frozenset(cores[first:last]) for first, last in itertools.pairwise(edges)]
    return [Slot(env, f"{len(share) or 'all'} core(s)", share) for share in shares]


def run_jobs(jobs: Sequence[Job], free: Sequence[Slot], stop: Sequence[int], *, ended: Callable[[Job], None]) -> None:
    """Runs the jobs, each on a slot, until there is none left, or until a signal; no process is left.

    Args:
        stop: the signals that this process has received. The first one is passed on to the runs; a second Ctrl-C kills
            them.
        ended: called with a job after its end.
    """
    idle, left, passed_on = list(free), list(enumerate(jobs, 1)), False
    running: dict[subprocess.Popen, tuple[Job, Slot]] = {}
    try:
        while running or (left and not stop):
            while idle and left and not stop:
                (number, job), slot = left.pop(0), idle.pop(0)
                print(f"{job.name}: started ({number} of {len(jobs)})", flush=True)
                running[_start(job, slot)] = job, slot
            time.sleep(_POLL_SECONDS)
            if stop.count(signal.SIGINT) > 1:
                _send(running, signal.SIGKILL)
            elif stop and not passed_on:
                passed_on = True
                _send(running, signal.SIGTERM)
            for process, (job, slot) in list(running.items()):
                if process.poll() is not None:
                    del running[process]
                    idle.append(slot)
                    files.write_json(job.workdir / _END, {"code": process.returncode})
                    ended(job)
    finally:
        _send(running, signal.SIGKILL)
        for process in running:
            process.wait()


def _start(job: Job, slot: Slot) -> subprocess.Popen:
    bound = processes.die_with_parent(os.getpid()) if sys.platform == "linux" else None

    def prepare() -> None:
        if bound is not None:
            bound()
        if slot.cores:
            os.sched_setaffinity(0, slot.cores)

    (job.workdir / _END).unlink(missing_ok=True)
    with (job.workdir / LOG).open("ab") as log:
        # A session of its own: Control-C reaches this process only, which passes it on once.
        options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        return subprocess.Popen(job.command, env=dict(slot.env), preexec_fn=prepare, **options)


def _send(running: Mapping[subprocess.Popen, Any], number: int) -> None:
    for process in running:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)


def exit_code(workdir: Path) -> int | None:
    """Returns the exit code of the last process of a run, negative: killed by this signal; None: none has ended."""
    return (files.read_json(workdir / _END) or {}).get("code")


def check_slurm(given: str) -> None:
    """Raises ValueError if the last word of --slurm is no batch file, or there is no Slurm on this machine."""
    batch_file = shlex.split(given)[-1]
    if not Path(batch_file).is_file():
        raise ValueError(f"--slurm={given}: there is no batch file {batch_file}. The template is launch/slurm.sbatch.")
    if shutil.which("sbatch") is None:
        raise ValueError("--slurm needs sbatch, which is not on this machine: start the sweep on a login node.")


def submit(workdir: Path, jobs: Sequence[Job], left: Sequence[Job], given: str, max_at_once: int | None) -> int:
    """Submits the jobs `left` as one array, if none of this sweep is in the queue; returns the exit code.

    array.json in the workdir has its tasks, and the comment of the array is the workdir. Raises ValueError with the
    message of squeue or sbatch if it fails.
    """
    queued = [line.strip() for line in _ask("squeue", "--noheader", "--me", "--format=%k").splitlines()]
    if str(workdir) in queued:
        print("Nothing to submit: the job array of this sweep is in the queue. Run the same command after its end.")
        return 0
    if not left:
        print(f"Nothing to submit: all {len(jobs)} runs are finished or running.")
        return 0
    path = workdir / "array.json"
    tasks = [{"workdir": str(job.workdir), "command": list(job.command)} for job in left]
    files.write_json(path, {"tasks": tasks})
    limit = f"%{max_at_once}" if max_at_once else ""
    options = [f"--array={hostlist.ranges(range(len(left)), ',')}{limit}", f"--job-name={workdir.name}"]
    options += [f"--comment={workdir}", f"--output={str(workdir).replace('%', '%%')}/slurm-%A_%a.log"]
    task = ["python", "-m", __name__, str(path), "%a"]
    # If an option is given twice, sbatch uses the last one.
    job = _ask("sbatch", "--parsable", *options, *shlex.split(given), *task).strip().partition(";")[0]
    print(f"job {job}: {len(left)} of {len(jobs)} runs")
    shown = f"tfdist runs {shlex.quote(str(workdir))}"
    print(f"squeue --me lists them; {shown} shows their results. The same command again submits what is left.")
    return 0


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_ANSWER_SECONDS
        )
        problem = " ".join(done.stderr.split()) if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {_ANSWER_SECONDS:g} s"
    if problem:
        raise ValueError(f"{command[0]} failed, and nothing was submitted: {problem}")
    return done.stdout


def run_task(file: str, index: int) -> int:
    """Runs a task of a job array with srun, on the nodes of the task; returns the exit code of the job.

    1 in place of 75: at 75 the batch file would requeue the job, but the run requeues it itself.
    """
    task = (files.read_json(file) or {})["tasks"][index]
    workdir = Path(task["workdir"])
    (workdir / _END).unlink(missing_ok=True)
    print(f"The output is in {workdir / LOG}", flush=True)
    with (workdir / LOG).open("ab") as log:
        # The run requeues its job itself, as in the batch file.
        command = ["srun", f"--wait={_WAIT_SECONDS}", *task["command"], "--config.cluster.requeue=true"]
        code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
    files.write_json(workdir / _END, {"code": code})
    return 1 if code == interruption.EXIT_STOPPED else code


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    sys.exit(run_task(sys.argv[1], int(sys.argv[2])))
