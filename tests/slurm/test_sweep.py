"""`tfdist sweep --slurm` under a real Slurm of two nodes: a job array, whose tasks are requeued and resumed."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest
from launching import REPOSITORY
from processes import until

pytestmark = pytest.mark.slow
DIGITS = ["--config=digits", "--config.evaluation.every.epochs=1", "--config.report.tensorboard=false"]
SMALL = "--nodes=1 --ntasks-per-node=1 --gpus-per-node=0 --cpus-per-task=8"


def sweep(slurm, directory, *words):
    """Types the command on the login node; returns what it printed."""
    python = os.path.dirname(sys.executable)
    (directory / "site.sh").write_text(f'export PATH="{python}:$PATH" PYTHONPATH="{REPOSITORY}"\n')
    command = [sys.executable, "-m", "tfdist", "sweep", *words, f"--workdir={directory}/sweep"]
    env = {"TFDIST_SITE": str(directory / "site.sh"), "PYTHONPATH": str(REPOSITORY)}
    return slurm.output(command, env=env, stderr=subprocess.STDOUT, timeout=120)


def waited(slurm, directory, condition, seconds=400):
    """Waits; shows all logs of the directory when it is too late."""

    def shown():
        logs = [*directory.glob("*.log"), *directory.glob("sweep/*/output.log")]
        return slurm.run(["squeue"]).stdout + "\n".join(f"{log}:\n{log.read_text()[-1500:]}" for log in logs)

    return until(condition, seconds, shown, pause=0.5)


def _trains(process, folder):
    words = process.info["cmdline"] or []
    return words[1:3] == ["-m", "tfdist.main"] and any(word.endswith(f"={folder}") for word in words)


def test_twelve_runs_as_one_array(slurm, tmp_path):
    """One task is requeued by the signal of its time limit, and one is cancelled and finished by the same command."""
    words = [*DIGITS, "--epochs=40", "--set", "learning_rate.peak=0.02,0.05,0.1", "--set", "seed=0..3"]
    # Each lasts 20 s at least, so that it is met while it runs.
    words += [
        '--config.callbacks=[{"target": "tests.configs.slow_epochs:SlowEpochs", "seconds": 0.5}]',
        f"--slurm={SMALL} --time=20 --signal=USR1@30 --output={tmp_path}/%x-%j.log launch/slurm.sbatch",
        "--max-at-once=2",
    ]
    printed = sweep(slurm, tmp_path, *words)
    job = re.match(r"job (\d+): 12 of 12 runs\n", printed)[1]
    assert "is in the queue" in sweep(slurm, tmp_path, *words)  # None is submitted twice.
    folders = [tmp_path / "sweep" / f"peak={peak}_seed={seed}" for peak in ("0.02", "0.05", "0.1") for seed in range(4)]
    waited(slurm, tmp_path, lambda: list(folders[1].glob("checkpoints/step-*")))
    assert len(slurm.run(["squeue", "--noheader", "--states=R", "--format=%i"]).stdout.split()) <= 2
    # As Slurm sends when the time is nearly up: the run saves, and requeues its task.
    (training,) = (one for one in psutil.process_iter(["cmdline"]) if _trains(one, folders[1]))
    training.send_signal(signal.SIGUSR1)
    waited(slurm, tmp_path, lambda: slurm.job(f"{job}_1")["Restarts"] == "1")
    waited(slurm, tmp_path, lambda: list(folders[2].glob("checkpoints/step-*")))
    slurm.output(["scancel", f"{job}_2"])
    waited(slurm, tmp_path, lambda: not slurm.run(["squeue", "--noheader"]).stdout.strip(), 900)
    left = [folder.name for folder in folders if not (folder / "finished.json").exists()]
    assert left == [folders[2].name]
    assert "stopped by SIGUSR1 and saved" in (folders[1] / "output.log").read_text()
    assert "1 of 12 runs" in sweep(slurm, tmp_path, *words)
    waited(slurm, tmp_path, lambda: not slurm.run(["squeue", "--noheader"]).stdout.strip())
    assert all((folder / "finished.json").exists() for folder in folders)
    assert "12 runs are finished" in sweep(slurm, tmp_path, *words)
