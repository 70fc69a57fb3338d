"""Training with parameter servers: chief, workers and a server as processes of this machine; a worker is killed."""

import os
import pathlib
import re
import signal
import subprocess
import time

import processes
import pytest
import tensorflow as tf
from launching import REPOSITORY, python
from topologies import arrays, records

from tfdist import config as c
from tfdist.cluster import interruption
from tfdist.configs.laboratory.parameter_server import command as command_lib
from tfdist.configs.laboratory.parameter_server import tasks
from tfdist.report import read_back
from tfdist.zoo import prepare

BATCHES = []


def signals_a_worker(batch, seeds, *, training, number=int(signal.SIGKILL)):
    """Prepares images, in the chief; from the 60th batch on, after a checkpoint, sends worker 1 a signal, once."""

    def note(images):
        BATCHES.append(len(images))
        marker = pathlib.Path(os.environ["TO_KILL"])
        if len(BATCHES) >= 60 and not marker.exists():
            deadline = time.monotonic() + 120
            while not list(marker.parent.glob("checkpoints/step-*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            marker.touch()
            os.kill(processes.tasks(os.getpid())["worker", 1], number)
        return images

    prepared = prepare.image(batch, seeds, training=training, scale=1 / 16)
    if training:
        image = tf.numpy_function(note, [prepared["image"]], tf.float32)
        prepared["image"] = tf.ensure_shape(image, prepared["image"].shape)
    return prepared


def asynchronous(workdir, *flags, code, number=signal.SIGKILL):
    """Runs the command, which must exit with `code` and leave no process; returns what it printed.

    A worker gets the signal `number`.
    """
    prepare = {"target": "test_asynchronous:signals_a_worker", "number": int(number)}
    command = [
        *("-m", "tfdist", "asynchronous", "--config=configs/digits.py", f"--workdir={workdir}"),
        *("--config.cluster.connect_seconds=240", "--config.train.epochs=none", "--config.train.steps=150"),
        *("--config.learning_rate.warmup_epochs=0", "--config.learning_rate.peak=0.02"),
        *("--config.report.every.steps=50", "--config.report.every.epochs=none", "--config.report.tensorboard=false"),
        *("--config.checkpoint.every.steps=20", "--config.checkpoint.every.epochs=none"),
        *("--config.checkpoint.export=false", f"--config.data.prepare={prepare}", *flags),
    ]
    paths = ":".join(str(REPOSITORY / folder) for folder in ("", "tests/workers", "tests/support"))
    variables = {"PYTHONPATH": paths, "TO_KILL": str(workdir / "killed")}
    done = python(*command, code=code, start=subprocess.run, **variables)
    # The kernel ends them with their parent, though not in the same instant.
    processes.until(lambda: not processes.running(str(workdir)), 60, lambda: str(processes.running(str(workdir))))
    return done


@pytest.mark.slow
def test_a_lost_worker_is_named_and_the_same_command_resumes(tmp_path):
    for code in (interruption.EXIT_PEER_LOST, 0):
        done = asynchronous(tmp_path, code=code)
        assert len(re.findall(r"^(?:worker|ps) \d: pid \d+$", done.stdout, re.MULTILINE)) == 3
        lost = re.search(r"^tfdist: worker 1 \(localhost:\d+\) is lost\. Restart all tasks", done.stderr, re.MULTILINE)
        assert bool(lost) == (code != 0), done.stderr
    starts = read_back.read_starts(tmp_path)
    assert [start["end"] for start in starts] == ["lost", "finished"]
    assert all(start["seconds"] > 0 and start["step"] > 0 for start in starts)
    assert "evaluate   tfdist evaluate " in done.stdout
    assert "resumed from" in done.stdout
    reports = records(tmp_path, "train")
    assert [report["step"] for report in reports] == [50, 100, 150]
    assert reports[2]["loss"] < 0.7 * reports[0]["loss"]
    evaluated = records(tmp_path, "evaluation")[-1]
    assert evaluated["num_examples"] == 355 and evaluated["accuracy"] > 0.7
    assert [int(value) for name, value in arrays(tmp_path, 150).items() if name.endswith("iteration")] == [150]


@pytest.mark.slow
def test_a_stopped_worker_ends_the_run(tmp_path):
    limit = "--config.cluster.stall_seconds=10"
    done = asynchronous(tmp_path, limit, code=interruption.EXIT_PEER_LOST, number=signal.SIGSTOP)
    assert "tfdist: no update has ended for 10 s (config.cluster.stall_seconds): a task is stopped" in done.stderr
    assert read_back.read_starts(tmp_path)[-1]["end"] == "lost"


@pytest.mark.slow
def test_other_launchers_need_tf_config():
    """Otherwise each of their processes would start its own workers and servers."""
    ranks = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    ranks |= {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    command = ("-m", "tfdist", "asynchronous", "--config=configs/digits.py")
    done = python(*command, code=1, start=subprocess.run, **ranks)
    assert "pid" not in done.stdout
    assert "give each task a TF_CONFIG with chief, worker and ps (docs/consistency.md): this is already" in done.stderr


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_tf_config_without_servers_is_refused(text):
    with pytest.raises(ValueError, match=r"needs a chief, workers and parameter servers"):
        tasks.task_spec({"TF_CONFIG": text})


def test_a_missing_worker_is_named():
    addresses = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    mine = tasks.TaskSpec(addresses=addresses, kind="chief", index=0)
    with pytest.raises(TimeoutError, match=r"2 worker\(s\) or .* within 0 s .*: localhost:2, localhost:3"):
        tasks.connect(mine, 0.0)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (c.Train(steps=1, precision="float16"), r'config\.train\.precision="float16" '),
        (c.Train(steps=1, micro_batches=2), r"config\.train\.micro_batches=2 .* set it to 1\."),
        (c.Train(steps=1, recompute=["block_*"]), r"config\.train\.recompute=\['block_\*'\] .* set it to \[\]"),
        (c.Communication(dtype="bfloat16"), r"communication\.dtype='bfloat16' .* set it to 'float32'"),
    ],
)
def test_asynchronous_training_refuses_other_options(section, message):
    sections = {"train": c.Train(steps=1)} | {type(section).__name__.lower(): section}
    with pytest.raises(ValueError, match=message):
        command_lib.check(c.Config(model={"target": "x:y"}, **sections))
