"""Sums in parts: the same bits in any order, and close to the sum."""

import functools
import math
import operator

import numpy as np
import tensorflow as tf

from tfdist.training.step.variants import sharded_objective

NAMES = ("loss", "error")


def total(values):
    """The sums of rows [n, 2], one after another, and what they are put together to."""
    parts = sum(sharded_objective.cut(tf.constant([*row, 1.0], tf.float64)).numpy() for row in values)
    totals = dict(zip((*sharded_objective.names_of_parts(NAMES), "examples"), parts.tolist(), strict=True))
    return sharded_objective.put_together(totals, NAMES)


def test_sums_have_the_same_bits_in_any_order():
    random = np.random.default_rng(0)
    values = (random.normal(size=(100, 2)) * 10.0 ** random.uniform(-6, 13, (100, 2))).astype(np.float32)
    found = total(values)
    assert found == total(values[::-1]) == total(random.permutation(values))
    assert found == {
        "examples": 100.0,
        "loss": math.fsum(values[:, 0].tolist()),
        "error": math.fsum(values[:, 1].tolist()),
    }
    plain = functools.partial(functools.reduce, operator.add)  # sum() compensates from Python 3.12 on.
    assert plain(values[:, 0].tolist()) != plain(values[::-1, 0].tolist())


def test_small_and_non_finite_values_are_kept():
    small = total([[1e-9, 0.0]] * 8)
    np.testing.assert_allclose(small["loss"], 8e-9, rtol=1e-4)
    assert total([[math.inf, math.nan], [1.0, 1.0]])["loss"] == math.inf
    assert math.isnan(total([[1.0, math.nan], [1.0, 1.0]])["error"])
