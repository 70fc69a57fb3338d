"""Reading ahead is bounded by bytes, at any speed of the steps."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.cluster import distributed_dataset
from tfdist.data import read_ahead, stream
from tfdist.keras_fit.adapters import base, make_adapter

# Bytes of an example, and of a batch of four.
EXAMPLE, BATCH = 2**20, 4


class Counted:
    """Zeros; counts how often it is read."""

    reads = 0

    def __len__(self) -> int:
        return 4096

    def _zeros(self, ids: np.ndarray) -> np.ndarray:
        self.reads += 1
        return np.zeros([len(ids), EXAMPLE // 4], np.float32)

    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tf.numpy_function(self._zeros, [ids], tf.float32)
        return {"x": tf.ensure_shape(values, [BATCH, EXAMPLE // 4]), "label": ids}


def of_stream(source: Counted) -> tf.data.Dataset:
    options = {"global_batch": BATCH, "seed": 0, "shuffle": True}
    return stream.training(source, lambda batch, seeds, training: batch, stream.ReplicaShard(), **options)(0, 1000)


def of_arrays(source: Counted) -> tf.data.Dataset:
    options = base.DataOptions(batch_size=BATCH, steps=None, shuffle=True, class_weight=None, seed=0)
    return make_adapter.make_data_adapter(source, None, None, options).dataset(stream.ReplicaShard(), 0, 1000)


def settled(source: Counted) -> int:
    """The number of reads, once there are no more of them."""
    seen = -1
    while seen != source.reads:
        seen = source.reads
        time.sleep(0.2)
    return seen


@pytest.mark.parametrize("make", slow_except([of_stream, of_arrays], [of_stream]))
def test_pauses_between_steps_that_wait_for_data_make_no_buffer_grow(make, monkeypatch):
    monkeypatch.setattr(read_ahead, "MAX_BYTES", 64 * 2**20, raising=False)
    source = Counted()
    dataset = distributed_dataset.without_autotuning(make(source))
    before = source.reads  # Adapters look at the first batch.
    iterator, taken = iter(dataset), 0
    for _ in range(6):  # Evaluations, in which the buffer fills; then steps that empty it.
        ahead = settled(source) - before - taken
        taken += sum(1 for _ in itertools.islice(iterator, ahead + 30))
    ahead = settled(source) - before - taken
    assert 2 <= ahead <= 64 * 2**20 // (BATCH * EXAMPLE) + 1


@pytest.mark.parametrize(
    ("shape", "local_replicas", "most"),
    [((256, 224, 224, 3), 1, 13), ((256, 224, 224, 3), 8, 24), ((None, 10), 1, 18), ((8, 2**30), 2, 6)],
)
def test_the_limits_in_elements(shape, local_replicas, most):
    calls, buffer = read_ahead.limits({"x": tf.TensorSpec(shape)}, rows=32, local_replicas=local_replicas)
    assert calls >= local_replicas and buffer >= local_replicas and calls + buffer <= most
