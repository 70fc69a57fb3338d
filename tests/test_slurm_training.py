"""Trainings under a real Slurm of two nodes: the same weights as anywhere else, and a batch job that survives."""

import pathlib
import re
import shlex
import sys
import time
from collections.abc import Callable

import pytest
from launching import ATOL, REPOSITORY, assert_weights_agree, train_alone, train_command, weights
from slurm_cluster import SlurmCluster, slurm_cluster, slurm_missing

ON_CPUS = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Two nodes, whose GPUs exist for Slurm alone: TensorFlow finds none, and trains on the CPU."""
    if reason := slurm_missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=("n9", "n10"), gpus=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def alone(slurm, tmp_path_factory):
    """The weights of one worker."""
    return train_alone(tmp_path_factory.mktemp("alone"))


def test_four_tasks_on_two_nodes_are_the_run_of_one(slurm, alone, tmp_path):
    srun = ["srun", "-N2", "-n4", *train_command(tmp_path)]
    done = slurm.run(srun, env=ON_CPUS, cwd=REPOSITORY, timeout=300)
    assert done.returncode == 0, done.stderr
    assert_weights_agree(weights(tmp_path), alone, atol=ATOL)


def test_a_missing_task_is_named(slurm, tmp_path):
    """The second node's task ends before it has met the others."""
    train = shlex.join(train_command(tmp_path, "--config.cluster.connect_seconds=5"))
    command = f"if [ $SLURM_PROCID = 1 ]; then exit 3; else exec {train}; fi"
    done = slurm.run(["srun", "-N2", "--ntasks-per-node=1", "bash", "-c", command], env=ON_CPUS, cwd=REPOSITORY)
    assert done.returncode == 3
    assert re.search(r"worker 0: 1 of 2 workers were not found within 5 s.*rank 1 \(n10:\d+\)", done.stderr, re.DOTALL)


def submit(slurm: SlurmCluster, directory: pathlib.Path, size: list[str], *options: str) -> tuple[str, pathlib.Path]:
    """Submits launch/slurm.sbatch, made small by options of sbatch; returns the job's id and its log."""
    (directory / "site.sh").write_text(f'export PATH="{pathlib.Path(sys.executable).parent}:$PATH"\n')
    command = train_command(directory / "run", *options)
    sbatch = ["sbatch", "--parsable", f"--output={directory}/%x-%j.log", "--nodes=2", "--cpus-per-task=1", *size]
    done = slurm.run(
        [*sbatch, "launch/slurm.sbatch", *command[command.index("tfdist.main") + 1 :]],
        env=ON_CPUS | {"TFDIST_SITE": str(directory / "site.sh")},
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    return job, directory / f"tfdist-{job}.log"


def job_state(slurm: SlurmCluster, job: str) -> dict[str, str]:
    """What `scontrol show job` says."""
    return dict(re.findall(r"(\w+)=(\S*)", slurm.run(["scontrol", "show", "job", job]).stdout))


def wait_for(condition: Callable[[], bool], log: pathlib.Path, seconds: float = 300.0) -> None:
    """Waits until `condition()` holds; shows the job's log when it is too late."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, log.read_text() if log.exists() else "the job has not begun"
        time.sleep(0.1)


def wait_for_end(slurm: SlurmCluster, job: str, log: pathlib.Path) -> dict[str, str]:
    """Waits until the job is completed, and returns its state."""
    wait_for(lambda: job_state(slurm, job)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"), log)
    state = job_state(slurm, job)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0"), log.read_text()
    return state


def test_the_batch_file_trains(slurm, alone, tmp_path):
    job, log = submit(slurm, tmp_path, ["--ntasks-per-node=2", "--distribution=cyclic"])
    state = wait_for_end(slurm, job, log)
    assert (state["NumNodes"], state["NumTasks"], state["Restarts"]) == ("2", "4", "0")
    assert_weights_agree(weights(tmp_path / "run"), alone, atol=ATOL)


def test_the_batch_file_goes_on_after_its_time_is_up(slurm, tmp_path):
    """SIGUSR1 stands for the end of the job's time, which Slurm counts in minutes."""
    options = ["--config.train.steps=200", "--config.train.call_seconds=0.1"]
    often = ["--config.report.every.epochs=none", "--config.report.every.steps=10"]
    job, log = submit(slurm, tmp_path, ["--ntasks-per-node=1"], *options, *often)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and '"train"' in metrics.read_text(), log)
    assert slurm.run(["scancel", "--signal=USR1", job]).returncode == 0
    wait_for(lambda: job_state(slurm, job)["JobState"] == "PENDING", log)
    assert "stopped by SIGUSR1 and saved" in log.read_text()
    assert not (tmp_path / "run" / "model.keras").exists()
    # Slurm lets a job that has come back wait for two minutes; in the same second, it would not start.
    assert slurm.run(["scontrol", "update", f"JobId={job}", "StartTime=now+2"]).returncode == 0
    assert wait_for_end(slurm, job, log)["Restarts"] == "1"
    assert "resumed from" in log.read_text()
    srun = ["srun", "-N2", "--ntasks-per-node=1", *train_command(tmp_path / "uninterrupted", *options)]
    assert slurm.run(srun, env=ON_CPUS, cwd=REPOSITORY, timeout=300).returncode == 0
    assert_weights_agree(weights(tmp_path / "run"), weights(tmp_path / "uninterrupted"), atol=0)
