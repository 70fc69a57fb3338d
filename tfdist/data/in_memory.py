"""What is said of examples that cannot be read. No TensorFlow."""

import re
import threading
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

_NODE = re.compile(r"\{\{.*?\}\}\s*|\s*\[Op:.*")


def reason(error: Exception) -> str:
    """Returns the first line of `error`'s message, without the names of TensorFlow's nodes, ending in a full stop."""
    text = _NODE.sub("", str(error).strip()).split("\n")[0].strip()
    return text if text.endswith(".") else f"{text}."


# Examples decoded by one call while a source is loaded.
CHUNK_SIZE = 512


class InMemoryArrays:
    """Arrays that are loaded once, at the first `gather`, and stay in host memory as tensors.

    Args:
        load: returns the arrays by name, each [examples, ...]; it runs eagerly, on the host, and only once. The arrays
            are not copied where TensorFlow can share their memory: nobody may change them afterwards.
    """

    def __init__(self, load: Callable[[], Mapping[str, np.ndarray | tf.Tensor]]):
        self._load = load
        self._lock = threading.Lock()
        self._tensors: dict[str, tf.Tensor] | None = None

    def gather(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids` (int64 [n]) as {name: [n, ...]}."""
        with self._lock:
            if self._tensors is None:
                # The first call comes while `Dataset.map` traces a graph. Lifted out of it, and given to it as eager
                # tensors, the arrays are captured by reference; as NumPy arrays they would become graph constants.
                with tf.init_scope(), tf.device("CPU:0"):
                    self._tensors = {key: tf.convert_to_tensor(value) for key, value in self._load().items()}
                self._load = None
        return {key: tf.gather(tensor, ids) for key, tensor in self._tensors.items()}


def collect(chunks: tf.data.Dataset, num_examples: int) -> dict[str, np.ndarray | tf.Tensor]:
    """Returns the examples of a dataset of {name: [chunk, ...]} joined to {name: [num_examples, ...]}.

    Numbers are written into one array as they come, so that no more than one chunk is held twice.
    """
    joined: dict[str, np.ndarray] = {}
    position = 0
    for chunk in chunks.as_numpy_iterator():
        for key, values in chunk.items():
            if key not in joined:
                joined[key] = np.empty((num_examples, *values.shape[1:]), values.dtype)
            joined[key][position : position + len(values)] = values
        position += len(values)
    assert position == num_examples, f"{position} examples instead of {num_examples}"
    return joined


def fits(num_bytes: int, limit_mb: float) -> bool:
    """Whether `num_bytes` are at most `limit_mb` MiB."""
    return num_bytes <= limit_mb * 2**20
