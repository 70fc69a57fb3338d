"""Measures all-reduces, training steps and free memory, and names the machine. Imports TensorFlow in functions only."""

import dataclasses
import functools
import os
import platform
import resource
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfdist import config as config_lib
from tfdist.cluster.devices import host_gpus, onednn
from tfdist.cluster.devices import machine as machine_lib

# (limit, usage) of a control group's memory, in versions 2 and 1.
_CGROUP_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def all_reduce_seconds(cluster: Any, num_bytes: int) -> float:
    """Seconds of the all-reduce of a float32 tensor of `num_bytes` over all replicas, the median of five."""
    import tensorflow as tf

    from tfdist.training.step.updates import all_reduce

    with cluster.scope():
        # A variable: TensorFlow would fold the sum of a constant.
        tensor = tf.Variable(tf.ones([max(1, num_bytes // 4)]), trainable=False)

    def replica() -> tf.Tensor:
        # One number of the result: the copy of the whole from a GPU would be measured as well.
        return all_reduce.sum_over_replicas([tf.convert_to_tensor(tensor)], config_lib.Communication())[0][0]

    @tf.function(autograph=False)
    def call() -> tf.Tensor:
        return cluster.strategy.experimental_local_results(cluster.strategy.run(replica))[0]

    call().numpy()
    times = []
    for _ in range(5):
        started = time.perf_counter()
        call().numpy()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def step_seconds(run: Any, steps: int, *, communication: bool = True) -> float:
    """Seconds of a training step of `run`, a `training.run.Run`; the first, which compiles, is not measured.

    The weights change; without communication, differently on each replica.
    """
    import tensorflow as tf

    from tfdist.training.step import multi_step

    context = run.context
    if not communication:
        # The step of one replica has no all-reduce.
        alone = dataclasses.replace(context.reduction, num_replicas=1)
        cluster = dataclasses.replace(run.cluster, num_replicas=1)
        context = dataclasses.replace(context, cluster=cluster, reduction=alone)
    step = functools.partial(run.train_step, context)
    call = multi_step.make_multi_step_fn(run.context, step, trains=True)
    iterator = run.feed.open_training(0, steps + 1)
    nothing = tf.zeros([], tf.float64)
    call(iterator, tf.constant(1, tf.int32), nothing)[0].numpy()
    started = time.perf_counter()
    call(iterator, tf.constant(steps, tf.int32), nothing)[0].numpy()
    return (time.perf_counter() - started) / steps


def peak_bytes(local_replicas: int, *, on_gpus: bool) -> float:
    """The most bytes that a replica of this process has used: of its GPU, or its share of the process' memory."""
    import tensorflow as tf

    if on_gpus:
        devices = [f"GPU:{index}" for index in range(local_replicas)]
        return max(tf.config.experimental.get_memory_info(device)["peak"] for device in devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / local_replicas


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of free host memory: what the system calls available, but at most what the control group has left.

    `cgroup`: the folder with the memory limit and usage of this process' control group (version 2 or 1).
    """
    free = psutil.virtual_memory().available
    for limit, used in _CGROUP_FILES:
        texts = [cgroup / name for name in (limit, used)]
        if all(path.exists() for path in texts):
            maximum, usage = (path.read_text().strip() for path in texts)
            if maximum.isdecimal():
                free = min(free, max(0, int(maximum) - int(usage)))
    return free


def machine() -> str:
    """Returns this host's name and its GPUs or processor, for captions: "host n9, 4 x NVIDIA A100-SXM4-40GB"."""
    gpus = Counter(gpu.name for gpu in host_gpus.query() or ()) if host_gpus.assigned_gpus(os.environ) else {}
    devices = [f"{count} x {name}" for name, count in gpus.items()]
    if not devices:
        devices = [f"{machine_lib.num_cores()} CPU cores ({onednn.read_processor().name or platform.machine()})"]
    return ", ".join([f"host {socket.gethostname()}", *devices])
