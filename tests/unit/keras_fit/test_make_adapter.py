"""The data of a script: arrays of all kinds, and the largest batch of a dataset."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base, make_adapter


def adapter(x, y=None):
    return make_adapter.make_data_adapter(x, y, None, base.DataOptions())


def test_a_series_of_pandas_is_a_column_as_in_keras():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(6.0), "b": np.arange(6.0), "target": np.arange(6)})
    x, y = adapter(frame[["a", "b"]], frame["target"]).read(tf.constant([4, 1], tf.int64))[0]
    assert x.shape == (2, 2) and y.shape == (2, 1) and y[:, 0].numpy().tolist() == [4, 1]


def test_each_epoch_has_an_order_of_its_own_and_each_row_once():
    options = base.DataOptions(batch_size=4, shuffle=True)
    found = make_adapter.make_data_adapter(np.arange(12), None, None, options)
    read = [*found.dataset(ReplicaShard(), 0, 9).take(9).as_numpy_iterator()]
    orders = np.reshape([np.ravel(element["data"]) for element in read], (3, 12)).tolist()
    assert all(sorted(order) == [*range(12)] for order in orders)
    assert len({tuple(order) for order in (*orders, range(12))}) == 4


class Pairs:
    """A source whose `read` returns a list."""

    def __len__(self):
        return 8

    def read(self, ids):
        return [tf.cast(ids, tf.float32), 2.0 * tf.cast(ids, tf.float32)]


def test_a_list_of_a_source_is_x_and_y():
    dataset = adapter(Pairs()).dataset(ReplicaShard(), 0, 1)
    x, y = tf.nest.flatten(next(iter(dataset))["data"])
    assert x.numpy().tolist() == [*range(8)] and y.numpy().tolist() == [*range(0, 16, 2)]


def test_arrays_of_string_objects_are_string_tensors():
    x, y = adapter(np.array(["a b", "c"], object), np.array([0, 1])).read(tf.constant([1], tf.int64))[0]
    assert x.dtype == tf.string and x.numpy().tolist() == [b"c"] and y.numpy().tolist() == [1]


def slowly(x):
    """Every third element takes its time."""
    wait = tf.numpy_function(lambda x: time.sleep(0.05 * (x % 3 == 0)) or x, [x], tf.int64)
    return tf.ensure_shape(wait, [])


def test_options_that_allow_any_order_have_no_effect():
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.Dataset.range(12).map(slowly, num_parallel_calls=6).with_options(options).batch(3)
    found = adapter(dataset)
    assert not found.order_unknown
    for _ in range(2):
        read = found.dataset(ReplicaShard(), 0, 4).take(4).as_numpy_iterator()
        assert [x for element in read for x in element["data"][0]] == [*range(12)]


PARALLEL = {"num_parallel_calls": 2, "deterministic": False}


@pytest.mark.parametrize(
    ("make", "unordered"),
    [
        (lambda one: one.map(lambda x: x + 1, **PARALLEL).batch(2), True),
        (lambda one: one.interleave(tf.data.Dataset.from_tensors, **PARALLEL).batch(2), True),
        (lambda one: one.flat_map(lambda x: tf.data.Dataset.range(x).map(lambda y: y, **PARALLEL)).batch(2), True),
        (lambda one: one.take(1).interleave(tf.data.Dataset.from_tensors, **PARALLEL).batch(2), False),
    ],
)
def test_operations_without_a_fixed_order_are_reported(make, unordered):
    found = adapter(make(tf.data.Dataset.range(8)))
    assert ("deterministic=False" in (found.order_unknown or "")) == unordered


def test_each_pass_of_a_generator_begins_with_its_first_two_batches_and_goes_on_as_in_keras():
    def batches():
        for number in itertools.count():
            yield np.full((4, 2), number, np.float32)

    adapter = make_adapter.make_data_adapter(batches(), None, None, base.DataOptions(steps=3))
    for expected in ([0, 1, 2], [0, 1, 3]):
        elements = adapter.one_pass(ReplicaShard(), reset=True).take(3)
        assert [int(element["data"][0][0][0, 0]) for element in elements] == expected


def test_objects_that_are_no_data_and_lists_of_targets_are_refused():
    """Other data that do not fit: `REFUSED` of tests/workers/test_fit.py."""
    for data, words in (
        ((object(),), "class 'object'"),
        ((np.zeros((7, 2)), [0.0] * 7), "A list means several"),
    ):
        with pytest.raises(ValueError, match=words):
            adapter(*data)
