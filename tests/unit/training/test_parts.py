"""Which numbers of a weight each replica holds, and how the whole is put together again."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.step.updates import tables
from tfdist.training.step.variants.sharding.parts import SMALLEST, Layout, Part, choose_layout

SHAPES = [(SMALLEST,), (1031,), (3, 3, 23, 31), (71, 19), (64, 512), (2000, 1)]


def weight(shape, dtype="float32", **attributes):
    """What the choice of a layout reads of a weight."""
    return types.SimpleNamespace(shape=shape, dtype=dtype, **attributes)


@pytest.mark.parametrize("replicas", [2, 3, 4, 100])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_parts_of_all_replicas_are_the_whole(shape, replicas):
    layout = choose_layout(weight(shape), replicas)
    value = tf.random.stateless_normal(shape, [1, 2])
    parts = [layout.take(value, replica) for replica in range(replicas)]
    assert {tuple(part.shape) for part in parts} == {layout.part}
    rows = tf.stack([tf.reshape(part, [layout.numbers]) for part in parts])
    assert (layout.join(rows).numpy() == value.numpy()).all()


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_part_is_little_more_than_its_share(shape, replicas):
    layout = choose_layout(weight(shape), replicas)
    assert layout.size / replicas <= layout.numbers <= 1.07 * layout.size / replicas


def test_small_weights_and_other_types_stay_whole():
    assert choose_layout(weight((SMALLEST - 1,)), 2) is None
    assert choose_layout(weight((64, 64), "bfloat16"), 2) is None
    assert choose_layout(weight((64, 64), overwrite_with_gradient=True), 2) is None
    assert choose_layout(weight((64, 64), "float64"), 2) is not None


def test_the_rows_of_a_part_are_those_of_the_gradient_in_their_order():
    layout = choose_layout(weight((71, 19)), 4)
    assert layout.by_rows and layout.part == (18, 19)
    indices = tf.constant([70, 3, 17, 3, 18, 70, 0], tf.int64)
    values = tf.random.stateless_normal([7, 19], [1, 2])
    gradient = tf.IndexedSlices(values, indices, tf.constant([71, 19]))
    whole = tables.sum_rows(gradient)
    for replica in range(4):
        own = layout.take_rows(gradient, replica)
        assert (tables.sum_rows(own).numpy() == layout.take(whole, replica).numpy()).all()
    assert layout.take_rows(gradient, 0).indices.numpy().tolist() == [3, 17, 3, 0]


def test_rows_of_a_weight_that_is_not_divided_by_rows_are_refused():
    variable = keras.Variable(np.zeros((5, 300), np.float32), name="table")
    layout = choose_layout(variable, 2)
    assert layout == Layout(shape=(5, 300), part=(752,), replicas=2)
    part = Part(weight=variable, layout=layout, variable=variable)
    gradient = tf.IndexedSlices(tf.zeros([1, 300]), tf.constant([0]), tf.constant([5, 300]))
    with pytest.raises(ValueError, match=r"the gradient of 'table', .* Set config.communication.sparse_as_dense"):
        part.take(gradient, 0)
