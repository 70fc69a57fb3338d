"""Training with parameter servers: chief, workers and a server as processes of this machine; a worker is killed."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf
from launching import REPOSITORY, worker_environment
from topologies import arrays, records

from tfdist import config as c
from tfdist.cluster import interruption
from tfdist.config import validate
from tfdist.tools.parameter_server import servers
from tfdist.zoo import prepare

BATCHES = []


def children(kind):
    """The processes that this one has started as `kind`: index -> pid."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        given = [variable.removeprefix(b"TF_CONFIG=") for variable in variables if variable.startswith(b"TF_CONFIG=")]
        if parent == os.getpid() and given and json.loads(given[0])["task"]["type"] == kind:
            found[json.loads(given[0])["task"]["index"]] = int(path.name)
    return found


def words(path):
    """The command line of a process; empty where it has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def kills_a_worker(batch, seeds, *, training):
    """Prepares images, in the chief; with the 60th batch the second worker dies, once."""

    def note(images):
        BATCHES.append(len(images))
        marker = pathlib.Path(os.environ["TO_KILL"])
        if len(BATCHES) == 60 and not marker.exists():
            marker.touch()
            os.kill(children("worker")[1], signal.SIGKILL)
        return images

    prepared = prepare.image(batch, seeds, training=training, scale=1 / 16)
    if training:
        image = tf.numpy_function(note, [prepared["image"]], tf.float32)
        prepared["image"] = tf.ensure_shape(image, prepared["image"].shape)
    return prepared


def test_a_worker_that_is_killed_costs_a_warning_alone(tmp_path):
    options = [
        *("--config=configs/digits.py", f"--workdir={tmp_path}", "--config.cluster.connect_seconds=240"),
        "--config.data.prepare={'target': 'test_asynchronous:kills_a_worker'}",
        *("--config.train.epochs=none", "--config.learning_rate.warmup_epochs=0", "--config.learning_rate.peak=0.02"),
        *(
            "--config.report.every.steps=50",
            "--config.report.every.epochs=none",
            "--config.report.tensorboard=false",
            "--config.checkpoint.export=false",
        ),
    ]
    command = [sys.executable, "-m", "tfdist", "asynchronous", *options, "--config.train.steps=150"]
    env = worker_environment(PYTHONPATH=f"{REPOSITORY}:{REPOSITORY / 'tests'}", TO_KILL=str(tmp_path / "killed"))
    codes, said = [], ""
    # TensorFlow may lose its way; the same command then goes on.
    while len(codes) < 4 and set(codes) <= {interruption.EXIT_PEER_LOST}:
        done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=300)
        codes, said = [*codes, done.returncode], said + done.stdout + done.stderr
    assert codes[-1] == 0, said
    if len(codes) == 1:
        assert "WARNING: worker 1 has ended with -9. The others go on; it is started again." in said
    reports = records(tmp_path, "train")
    assert [report["step"] for report in reports] == [50, 100, 150]
    assert reports[2]["loss"] < 0.7 * reports[0]["loss"]
    evaluated = records(tmp_path, "evaluation")[-1]
    assert evaluated["num_examples"] == 355 and evaluated["accuracy"] > 0.7
    assert [int(value) for name, value in arrays(tmp_path, 150).items() if name.endswith("iteration")] == [150]
    assert len(re.findall(r"^(?:worker|ps) \d: pid \d+$", said, re.MULTILINE)) >= 3
    deadline = time.monotonic() + 60  # The kernel ends them with their parent, though not in the same instant.
    while any(str(tmp_path).encode() in words(path) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'])
def test_without_servers_it_is_said_how_to_start_them(text):
    with pytest.raises(
        ValueError,
        match=r"needs a chief, workers and parameter servers: start .* python -m tfdist asynchronous",
    ):
        servers.task_spec({"TF_CONFIG": text})


def test_a_missing_worker_is_named():
    addresses = {"chief": ["localhost:1"], "worker": ["localhost:2"], "ps": ["localhost:3"]}
    mine = servers.TaskSpec(addresses=addresses, kind="chief", index=0)
    with pytest.raises(TimeoutError, match=r"2 worker\(s\) or .* did not come within 0 s .*: localhost:2, localhost:3"):
        servers.connect(mine, 0.0)


@pytest.mark.parametrize("field, value", [("local_steps", 2), ("precision", "float16"), ("micro_batches", 2)])
def test_what_does_not_go_with_it_is_refused(field, value):
    config = c.Config(model={"target": "x:y"}, train=c.Train(steps=1, asynchronous=True, **{field: value}))
    with pytest.raises(ValueError, match=r"train.asynchronous needs local_steps=1, micro_batches=1"):
        validate.validate(config)
