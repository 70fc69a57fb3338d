"""Examples as arrays in host memory."""

import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf


class InMemoryArrays:
    """Arrays that are loaded at the first `gather` and kept in host memory as tensors.

    Args:
        load: returns the arrays by name, each [examples, ...]. Runs once, eagerly, on the host. The arrays are not
            copied if TensorFlow can share their memory: do not modify them afterwards.
    """

    def __init__(self, load: Callable[[], Mapping[str, np.ndarray | tf.Tensor]]):
        self._load = load
        self._lock = threading.Lock()
        self._tensors: dict[str, tf.Tensor] | None = None

    @tf.autograph.experimental.do_not_convert
    def gather(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids` (int64 [n]) as {name: [n, ...]}."""
        with self._lock:
            if self._tensors is None:
                # The first call runs while `Dataset.map` traces a graph. Eager tensors created outside of the graph
                # are captured by reference; NumPy arrays would become constants of the graph.
                with tf.init_scope(), tf.device("CPU:0"):
                    self._tensors = {key: tf.convert_to_tensor(value) for key, value in self._load().items()}
                self._load = None
        return {key: tf.gather(tensor, ids) for key, tensor in self._tensors.items()}

    def part(self, rows: range) -> "InMemoryArrays":
        """Moves these rows to new arrays, before anything is loaded: `self` is empty then.

        All rows are in memory while they are loaded, and those of the part afterwards.
        """
        load, self._load = self._load, None

        def load_part() -> dict[str, np.ndarray]:
            return {
                key: np.ascontiguousarray(value[rows.start : rows.stop : rows.step]) for key, value in load().items()
            }

        return InMemoryArrays(load_part)


def collect(chunks: Iterable[Mapping[str, np.ndarray]], num_examples: int) -> dict[str, np.ndarray]:
    """Returns chunks of examples, {name: [chunk, ...]}, joined to {name: [num_examples, ...]}.

    Each chunk is copied into the result as it arrives, so that at most one chunk is in memory twice.
    """
    joined: dict[str, np.ndarray] = {}
    position = 0
    for chunk in chunks:
        for key, values in chunk.items():
            if key not in joined:
                joined[key] = np.empty((num_examples, *values.shape[1:]), values.dtype)
            joined[key][position : position + len(values)] = values
        position += len(values)
    assert position == num_examples, f"{position} examples instead of {num_examples}"
    return joined


def fits(num_bytes: int, limit_mb: float) -> bool:
    """Returns True if `num_bytes` is at most `limit_mb` MiB."""
    return num_bytes <= limit_mb * 2**20
