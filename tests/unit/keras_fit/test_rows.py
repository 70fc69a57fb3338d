"""The rows of a batch that a replica gets."""

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base, make_adapter
from tfdist.keras_fit.whole_batch import rows


def shards(dataset, replicas):
    """The data of each replica in the first step."""
    adapter = make_adapter.make_data_adapter(dataset, None, None, base.DataOptions())
    parts = [ReplicaShard(num_replicas=replicas, first_replica=replica) for replica in range(replicas)]
    return [next(iter(adapter.dataset(part, 0, 1)))["data"][0] for part in parts]


def test_sparse_and_ragged_rows_are_divided():
    ragged, sparse = tf.ragged.constant([[1], [2, 3], []]), tf.sparse.from_dense([[0, 1], [2, 0], [3, 4]])
    dataset = tf.data.Dataset.from_tensor_slices((ragged, sparse)).batch(3)
    found = [(words.to_list(), tf.sparse.to_dense(flags).numpy().tolist()) for words, flags in shards(dataset, 2)]
    assert found == [([[1]], [[0, 1]]), ([[2, 3], []], [[2, 0], [3, 4]])]


VECTORS = tf.data.Dataset.from_tensor_slices((np.zeros((128, 4), np.float32), np.zeros((128, 1), np.float32)))


def test_an_epoch_ends_with_the_data(recwarn):
    for data in (VECTORS.batch(16).take(3), np.zeros((40, 2), np.float32)):
        adapter = make_adapter.make_data_adapter(data, None, None, base.DataOptions(steps=10, batch_size=16))
        assert adapter.steps == 3 and "ends after 3 batches" in str(recwarn.pop(UserWarning).message)
    adapter = make_adapter.make_data_adapter(VECTORS.batch(16), None, None, base.DataOptions(steps=8))
    assert adapter.steps == 8 and not recwarn.list


def test_a_batch_that_is_larger_than_the_first_one_cannot_be_gathered():
    low, total = tf.constant(0, tf.int64), tf.constant(5, tf.int64)
    part = rows.Rows(low=low, count=total, total=total, most=4, replicas=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"needs the largest batch first"):
        part.gather(tf.zeros([5, 2]))
