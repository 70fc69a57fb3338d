"""The number of elements of a dataset that are read ahead: bounded by their bytes.

`tf.data.AUTOTUNE` has no bound here, because autotuning is off (`cluster/distributed_dataset.py`): `map` runs one call
per core, and `prefetch` doubles its buffer each time that a step finds it empty after it was full, up to hundreds of
elements. After some evaluations, a run that waits for its data would read ahead 20 GB of images per worker.
"""

import math
import os
from typing import Any

import tensorflow as tf

# Bytes that a worker reads ahead, in calls of `map` and in the buffer together, unless three steps need more.
MAX_BYTES = 2**31
_MAX_CALLS, _BUFFERED_STEPS = 16, 2


def limits(spec: Any, *, rows: int, local_replicas: int) -> tuple[int, int]:
    """Returns the number of parallel calls of `map`, and the size of the buffer after it, in elements.

    Args:
        spec: nested specs of an element, which is the shard of one replica in one step.
        rows: the number used for unknown dimensions, which are those of the batch.
        local_replicas: the elements of one step.
    """
    max_elements = max((1 + _BUFFERED_STEPS) * local_replicas, MAX_BYTES // max(1, num_bytes(spec, rows)))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    buffer = _BUFFERED_STEPS * local_replicas
    # The results of calls that are ahead of the others also wait in the map.
    return max(local_replicas, min(_MAX_CALLS, cores, max_elements - buffer)), buffer


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `dataset` with autotuning off: otherwise closing may take a minute (`cluster/distributed_dataset.py`)."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def num_bytes(spec: Any, rows: int) -> int:
    """Returns the bytes of an element; `rows` replaces unknown dimensions. For strings, only the references count."""
    total = 0
    for one in tf.nest.flatten(spec):
        if isinstance(one, tf.TensorSpec) and one.shape.rank is not None:
            lengths = (rows if length is None else length for length in one.shape.as_list())
            total += one.dtype.size * math.prod(lengths)
    return total
