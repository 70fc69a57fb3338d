"""Trainings under a real Slurm of two nodes: the same weights as anywhere else, and a batch job that survives."""

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from launching import run_all, train_command
from processes import until
from slurm_cluster import SlurmCluster, slurm_cluster
from topologies import arrays, assert_same_bits, environments, largest_difference

from tfdist.report import read_back

pytestmark = pytest.mark.slow


def test_two_tasks_on_two_nodes_are_the_run_of_one(slurm, alone, tmp_path):
    slurm.output(["srun", "-N2", "-n2", *train_command(tmp_path)], timeout=300)
    assert largest_difference(arrays(tmp_path), alone) < 1e-5


def submit(
    slurm: SlurmCluster, directory: pathlib.Path, size: list[str], *options: str, site: str = ""
) -> tuple[str, pathlib.Path]:
    """Submits launch/slurm.sbatch, made small by options of sbatch; returns the job's id and its log.

    `site`: what the site's file does besides.
    """
    (directory / "site.sh").write_text(f'export PATH="{pathlib.Path(sys.executable).parent}:$PATH"\n{site}')
    command = train_command(directory / "run", *options)
    sbatch = ["sbatch", "--parsable", f"--output={directory}/%x-%j.log", "--nodes=2", "--cpus-per-task=1", *size]
    words = [*sbatch, "launch/slurm.sbatch", *command[command.index("tfdist.main") + 1 :]]
    job = slurm.output(words, env={"TFDIST_SITE": str(directory / "site.sh")}).strip()
    return job, directory / f"tfdist-{job}.log"


def wait_for(condition: Callable[[], bool], log: pathlib.Path, seconds: float = 300.0) -> None:
    """Waits until `condition()` holds; shows the job's log when it is too late.

    A pause between two looks: each starts scontrol, and many of them would cost more than the training.
    """
    until(condition, seconds, lambda: log.read_text() if log.exists() else "the job has not begun", pause=0.3)


def wait_for_requeue(slurm: SlurmCluster, job: str, log: pathlib.Path) -> None:
    """Waits until the job has been requeued once."""

    def has_ended() -> bool:
        state = slurm.job(job)
        return state["Restarts"] == "1" or state["JobState"] == "FAILED"

    wait_for(has_ended, log)
    assert slurm.job(job)["Restarts"] == "1", log.read_text()


def wait_for_end(slurm: SlurmCluster, job: str, log: pathlib.Path) -> dict[str, str]:
    """Waits until the job is completed, and returns its state."""
    wait_for(lambda: slurm.job(job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), log)
    state = slurm.job(job)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    return state


@pytest.mark.parametrize("absent", [0, 1])
def test_a_job_in_which_a_task_does_not_start_is_requeued(slurm, tmp_path, absent):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\n[ "$SLURM_PROCID" != {absent} ] || exit 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    site, one_a_node = f'export PATH="{python.parent}:$PATH"\n', ["--ntasks-per-node=1", "--gpus-per-node=0"]
    job, log = submit(slurm, tmp_path, one_a_node, "--config.cluster.connect_seconds=1", site=site)
    wait_for_requeue(slurm, job, log)
    slurm.output(["scancel", job])
    assert f"rank {absent} (n{9 + absent}:" in log.read_text()
    if absent == 1:
        assert "worker 0: 1 of 2 workers did not connect to rank 0 within 1 s" in log.read_text()


# Worker 1 of the job with the id that is given, which waits for worker 0.
WAIT = """
import os, sys
from tfdist.cluster.discovery import environment
from tfdist.cluster.control import rendezvous
os.environ["SLURM_JOB_ID"] = sys.argv[1]
spec = environment.resolve(os.environ, port_base=10000, port_count=10000)
if spec.rank == 1:
    print("waits", flush=True)
    rendezvous.rendezvous(spec, must_match={}, seconds=300)
"""


def test_a_job_whose_port_another_job_uses_is_requeued(slurm, tmp_path):
    """Jobs whose ids differ by a multiple of 625 have the same ports."""
    job, log = submit(slurm, tmp_path, ["--hold", "--ntasks-per-node=1", "--gpus-per-node=0"])
    other = f"{int(job) + 625}"
    srun = ["srun", "--job-name=other", "-N2", "--ntasks-per-node=1", sys.executable, "-c", WAIT, other]
    with slurm.popen(srun, stdout=subprocess.PIPE, text=True) as waiting:
        try:
            assert waiting.stdout.readline() == "waits\n"
            slurm.output(["scontrol", "release", job])
            wait_for_requeue(slurm, job, log)
        finally:
            slurm.run(["scancel", "--name=other"])
    slurm.output(["scancel", job])
    assert re.search(r"port \d+ on host n\d+ is in use", log.read_text()), log.read_text()


def test_the_batch_file_trains(slurm, alone, tmp_path):
    job, log = submit(slurm, tmp_path, ["--ntasks-per-node=2", "--gpus-per-node=2", "--distribution=cyclic"])
    state = wait_for_end(slurm, job, log)
    assert (state["NumNodes"], state["NumTasks"], state["Restarts"]) == ("2", "4", "0")
    assert largest_difference(arrays(tmp_path / "run"), alone) < 1e-5


def test_studies_run_in_a_batch_job(slurm, tmp_path):
    """They start job steps of their own: one for each number of replicas, and one of two tasks for the stages."""
    tool = f"{sys.executable} -m tfdist"
    config = "--config.data.batch_size=64 --config.train.steps=5"
    commands = [
        f"{tool} scaling --config=configs/line.py --replicas=1,2 --batch=strong --workdir={tmp_path}/scaling",
        f"{tool} trajectories --config=configs/line.py --stages {config} --workdir={tmp_path}/stages",
    ]
    log = tmp_path / "job.log"
    sbatch = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", f"--output={log}"]
    done = slurm.run([*sbatch, f"--wrap={' && '.join(commands)}"], timeout=300)
    assert done.returncode == 0, done.stderr + log.read_text()
    text = log.read_text()
    assert "1 replica(s) by slurm" in text and "2 replica(s) by slurm" in text
    assert "worker 0 of 2" in (tmp_path / "scaling" / "strong-2.log").read_text()
    assert len((tmp_path / "scaling" / "scaling.csv").read_text().splitlines()) == 3
    assert re.search(r"^shard: the trajectory differs by [\d.e-]+ from that of one process", text, re.MULTILINE)


def records(directory: pathlib.Path) -> int:
    """How many intervals of training the run has reported."""
    metrics = directory / "run" / "metrics.jsonl"
    return metrics.read_text().count('"kind": "train"') if metrics.exists() else 0


def await_progress(slurm: SlurmCluster, job: str, log: pathlib.Path, before: int) -> None:
    """Waits until this start of the job has trained for a while."""

    def trains() -> bool:
        state = slurm.job(job)["JobState"]
        assert state in ("PENDING", "CONFIGURING", "RUNNING"), f"{state}\n{log.read_text()}"
        return records(log.parent) > before

    wait_for(trains, log)


def start_again(slurm: SlurmCluster, job: str, log: pathlib.Path, restarts: int) -> None:
    """Waits until the job has come back to the queue, and lets it start."""

    def is_back() -> bool:
        state = slurm.job(job)
        return (state["JobState"], state["Restarts"]) == ("PENDING", str(restarts))

    wait_for(is_back, log)
    # Slurm lets a job that has come back wait for two minutes; in the same second, it would not start.
    slurm.output(["scontrol", "update", f"JobId={job}", "StartTime=now+2"])


STEPS = ["--config.train.steps=120", "--config.train.call_seconds=0.1", "--config.report.every.epochs=none"]
SLOW = "--config.objective={'target': 'tests.support.lab:slow_classification', 'seconds': 0.15}"


def submit_long(slurm: SlurmCluster, directory: pathlib.Path) -> tuple[str, pathlib.Path]:
    """Submits a training long enough to be interrupted, of one task on each node; see `submit`."""
    one_a_node = ["--ntasks-per-node=1", "--gpus-per-node=1"]
    return submit(slurm, directory, one_a_node, *STEPS, SLOW, "--config.report.every.steps=5")


def assert_uninterrupted(directory: pathlib.Path) -> None:
    """Asserts that the job has the weights of the same two workers outside of Slurm, bit for bit."""
    run_all([train_command(directory / "uninterrupted", *STEPS)] * 2, environments(2))
    assert_same_bits(arrays(directory / "run", 120), arrays(directory / "uninterrupted", 120))


def test_a_job_resumes_after_scancel_a_signal_and_a_requeue_and_equals_an_uninterrupted_one(slurm, tmp_path):
    job, log = submit_long(slurm, tmp_path)
    await_progress(slurm, job, log, 0)
    slurm.output(["scancel", job])
    wait_for(lambda: slurm.job(job)["JobState"] == "CANCELLED" and "saved" in log.read_text(), log)
    assert (slurm.job(job)["Restarts"], "requeued" in log.read_text()) == ("0", False)
    assert "stopped by SIGTERM and saved" in log.read_text()
    shown = slurm.run([sys.executable, "-m", "tfdist", "runs", str(tmp_path)]).stdout
    assert shown.splitlines()[2].split()[:2] == [f"{tmp_path}/run", "stopped"], shown

    first, before = job, records(tmp_path)
    job, log = submit_long(slurm, tmp_path)
    await_progress(slurm, job, log, before)
    slurm.output(["scancel", "--signal=USR1", job])
    start_again(slurm, job, log, 1)
    assert "stopped by SIGUSR1 and saved" in log.read_text()
    assert log.read_text().count(f"tfdist: job {job} requeued: Slurm ends its processes now.") == 1
    await_progress(slurm, job, log, records(tmp_path))
    slurm.output(["scontrol", "requeue", job])
    start_again(slurm, job, log, 2)
    assert log.read_text().count("stopped by SIGTERM and saved") == 1
    assert wait_for_end(slurm, job, log)["Restarts"] == "2"
    assert log.read_text().count("resumed from") == 3
    starts = read_back.read_starts(tmp_path / "run")
    ends = [(start["job"], start["end"], start["replicas"]) for start in starts]
    assert ends == [(first, "stopped", 2), *[(job, "stopped", 2)] * 2, (job, "finished", 2)]
    seconds = [start["seconds"] for start in starts]
    assert seconds == pytest.approx([start["now"] - start["start"] for start in starts], rel=0.01)
    assert starts[2]["start"] - starts[1]["now"] > 1
    assert_uninterrupted(tmp_path)


@pytest.mark.parametrize("rebooted", [False, True], ids=["another node", "after a reboot"])
def test_a_job_whose_node_loses_its_power_resumes_on(alone, tmp_path, rebooted):
    """The next start takes over the workdir: it cannot see the old process, only that its heartbeats have stopped."""
    one = ["--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=0", *(["--nodelist=n9"] if rebooted else [])]
    options = ["--config.cluster.connect_seconds=none", "--config.checkpoint.every.steps=4", *STEPS[1:]]
    with slurm_cluster(tmp_path / "slurm") as slurm:
        job, log = submit(slurm, tmp_path, one, *options, SLOW)
        wait_for((tmp_path / "run/checkpoints/step-00000008").exists, log)
        node = slurm.job(job)["NodeList"]
        boot_id = slurm.boot_id(node)
        owner = json.loads((tmp_path / "run/.tfdist-run").read_text())
        slurm.power_off(node)
        if rebooted:
            slurm.power_on(node)
            if slurm.boot_id(node) == boot_id:
                pytest.skip("the boot id of a process namespace cannot be replaced on this machine")
        start_again(slurm, job, log, 1)
        state = wait_for_end(slurm, job, log)
    said = log.read_text()
    assert (owner["job"], owner["host"], state["NodeList"] == node) == (job, node, rebooted)
    assert f"from a run that no longer exists: job {job}, host {node}, process {owner['pid']}" in said
    assert re.search(r"resumed from .*/step-000000(08|12|16)\n", said), said
    assert_same_bits(arrays(tmp_path / "run"), alone)
