"""Milliseconds of a training step with oneDNN and without: kept in the user's cache, and measured by this program.

Run as a program, this module prints those of its process, which alone imports TensorFlow. The smallest processor time
of several turns counts, so that other programs disturb little.
"""

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_TURNS, _STEPS = 5, 4
_SECONDS = 120.0


def read_or_measure(processor: Sequence[str], variable: str, measure: bool) -> tuple[float, float] | None:
    """Returns milliseconds of a step without and with oneDNN, from the user's cache or measured; None: not known.

    Args:
        processor: what names this kind of processor.
        variable: the environment variable that turns oneDNN on or off.
        measure: whether to measure if the cache has no times.
    """
    key = " ".join([*processor, _tensorflow_version(), os.environ.get("ONEDNN_MAX_CPU_ISA", "")])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "tfdist"
    path = folder / f"onednn-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with contextlib.suppress(OSError, ValueError, TypeError):
        without, used = map(float, json.loads(path.read_text()))
        return without, used
    if not measure:
        return None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # Without a cache every start measures.
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(path.with_suffix(".lock"), "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)  # Of the workers of a host, one measures.
        with contextlib.suppress(OSError, ValueError, TypeError):
            without, used = map(float, json.loads(path.read_text()))
            return without, used
        print("tfdist: measuring once whether oneDNN is faster on this processor (some 15 s)", file=sys.stderr)
        times = measure_both(variable)
        with contextlib.suppress(OSError):
            if times is None:
                return None
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            unfinished.write_text(json.dumps(times))
            os.replace(unfinished, path)
    return times


def _tensorflow_version() -> str:
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""  # Another distribution holds it.


def measure_both(variable: str) -> tuple[float, float] | None:
    """Measures in two processes, one with oneDNN; None if they fail."""
    times = []
    for value in ("0", "1"):
        env = os.environ | {variable: value, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-m", __spec__.name]
        try:
            done = subprocess.run(command, env=env, capture_output=True, timeout=_SECONDS, check=True, text=True)
            times.append(float(done.stdout))
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
    return times[0], times[1]


def step_milliseconds() -> float:
    """Returns milliseconds of processor time of a step: two convolutions, two dense layers, 32 images of 28x28."""
    import tensorflow as tf

    shapes = ([5, 5, 1, 32], [5, 5, 32, 64], [7 * 7 * 64, 128], [128, 10])
    weights = [tf.Variable(tf.random.stateless_normal(shape, [index, 0]) * 0.05) for index, shape in enumerate(shapes)]
    images = tf.random.stateless_normal([32, 28, 28, 1], [7, 0])
    labels = tf.range(32) % 10

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            first = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, weights[0], 1, "SAME")), 2, 2, "VALID")
            second = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(first, weights[1], 1, "SAME")), 2, 2, "VALID")
            hidden = tf.nn.relu(tf.reshape(second, [32, -1]) @ weights[2])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ weights[3])
            loss = tf.reduce_mean(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    step()
    times = []
    for _ in range(_TURNS):
        start = time.process_time()
        for _ in range(_STEPS):
            step()
        times.append((time.process_time() - start) / _STEPS)
    return 1000 * min(times)


if __name__ == "__main__":
    print(step_milliseconds())
