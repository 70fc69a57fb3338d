"""UNDOCUMENTED."""

import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import config as config_lib


def measure(cluster: Any, num_bytes: int, *, repeats: int = 5) -> float:
    """Seconds for the sum of a float32 tensor of `num_bytes` over all replicas, the median of `repeats`."""
    import tensorflow as tf

    from tfdist.training.step import gradients

    def replica(tensor: tf.Tensor) -> tf.Tensor:
        return gradients.all_reduce([tf.identity(tensor)], config_lib.Communication())[0][0]

    @tf.function(autograph=False)
    def call(tensor: tf.Tensor) -> tf.Tensor:
        sums = cluster.strategy.run(replica, args=(tensor,))
        return tf.add_n(cluster.strategy.experimental_local_results(sums))

    # An argument, since the sum of a constant would be computed beforehand.
    tensor = tf.ones([max(1, num_bytes // 4)])
    call(tensor).numpy()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call(tensor).numpy()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


# (limit, usage) of a control group's memory, in versions 2 and 1.
_CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def step_seconds(run: Any, steps: int, *, communication: bool = True) -> float:
    """Seconds of a training step of `run`, an `experiment.Run`; the first, which compiles, is not counted.

    Args:
        run: its weights are spoilt where replicas do not communicate.
        steps: how many are measured.
        communication: False: without the sum over replicas.
    """
    import tensorflow as tf

    from tfdist.training.step import local_sgd, multi_step

    trainer = run.trainer
    if not communication:
        # One replica has nothing to sum.
        trainer = dataclasses.replace(trainer, cluster=dataclasses.replace(run.cluster, num_replicas=1))
    call = multi_step.make_multi_step_fn(
        run.trainer, functools.partial(local_sgd.choose_step(run.config.train), trainer)
    )
    iterator = run.cluster.distribute(run.training_data(0, steps + 1))
    nothing = tf.zeros([], tf.float64)
    call(iterator, tf.constant(1, tf.int64), nothing)[0].numpy()
    started = time.perf_counter()
    call(iterator, tf.constant(steps, tf.int64), nothing)[0].numpy()
    return (time.perf_counter() - started) / steps


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of host memory that are free: what Linux calls available, or what the `cgroup` of this process leaves."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit, used in _CGROUP_FILES:
        texts = [cgroup / name for name in (limit, used)]
        if all(path.exists() for path in texts):
            most, now = (path.read_text().strip() for path in texts)
            if most.isdecimal():
                free = min(free, max(0, int(most) - int(now)))
    return free
