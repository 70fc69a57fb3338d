"""Measures the time from a command to the first finished step. Imports no TensorFlow."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmark import workloads
from tests.benchmark.workloads import WORKLOADS
from tfdist.report import metrics_file

# The same network, data and step, with TensorFlow and Keras only.
_BARE = """
import sys, time
import numpy as np
import tensorflow as tf
import keras
file = np.load(sys.argv[1])
images, labels = file["x_train"], file["y_train"]
model = keras.Sequential([
    keras.Input((28, 28, 1)),
    keras.layers.Flatten(),
    keras.layers.Dense(128, activation="relu"),
    keras.layers.Dense(10),
])
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
optimizer.build(model.trainable_variables)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000)
dataset = dataset.map(lambda image, label: (tf.cast(image, tf.float32) / 255.0, label)).batch(64).prefetch(1)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

@tf.function
def step(images, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    return loss

step(*next(iter(dataset))).numpy()
print(time.time())
"""
_CONFIG = """
from pathlib import Path
from tfdist import config as c
from tests.benchmark.workloads import WORKLOADS

def get_config():
    config = WORKLOADS["mlp"].config(Path({folder!r}), 1, {{"train.steps": 1, "report.every.steps": 1}})
    config.checkpoint.export = False
    return config
"""
NAMES = ("bare script", "tfdist")


def measure(folder: Path, *, rounds: int, core: int | None) -> dict[str, float]:
    """Runs a bare script and tfdist in turn, `rounds` times after a first time that does not count.

    Args:
        folder: holds the data of the workload "mlp"; gets a workdir for each run.
        rounds: number of runs of each.
        core: the CPU core to pin both to; None: not pinned.

    Returns:
        A name of `NAMES` -> median time to the first finished step, in seconds.

    Raises:
        ValueError: a run failed; contains the end of its standard error.
    """
    (folder / "start.py").write_text(_CONFIG.format(folder=str(folder)))
    bare = [sys.executable, "-c", _BARE, str(workloads.data_file(WORKLOADS["mlp"], folder))]
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds + 1):
        started = time.time()
        finished = float(_run(bare, folder, core))
        taken["bare script"].append(finished - started)
        workdir = folder / f"start{number}"
        tfdist = [sys.executable, "-m", "tfdist.main", f"--config={folder / 'start.py'}", f"--workdir={workdir}"]
        started = time.time()
        _run(tfdist, folder, core)
        lines = [json.loads(line) for line in (workdir / metrics_file.METRICS).read_text().splitlines()]
        taken["tfdist"].append(next(line["time"] for line in lines if line["kind"] == "train") - started)
    # The first run of each reads files from disk; later ones from the page cache.
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def _run(command: list[str], folder: Path, core: int | None) -> str:
    done = subprocess.run(
        command,
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        capture_output=True,
        text=True,
        preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{' '.join(command[:3])} failed:\n{done.stderr[-2000:]}")
    return done.stdout
