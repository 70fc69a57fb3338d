"""Learning rates: the numbers at the borders, the shape between them, and precision far out."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.zoo import schedules

ALL = [schedules.constant, schedules.step, schedules.cosine, schedules.one_cycle, schedules.range_test]
# The first rate after the warm-up as a fraction of the peak; 1 of the others.
FIRST = {"one_cycle": 0.1, "range_test": 1e-7}


def rates(schedule, steps):
    return np.array([schedule(step).numpy() for step in steps], np.float64)


@pytest.mark.parametrize("make", slow_except(ALL, [schedules.cosine]))
def test_every_schedule_warms_up_reaches_its_peak_and_stays_after_the_run(make):
    schedule = make(0.4, total_steps=100, warmup_steps=10)
    start = 0.4 * FIRST.get(make.__name__, 1.0)
    values = rates(schedule, range(100))
    assert (values > 0).all() and values.max() == np.float32(0.4)
    if make is schedules.constant:
        assert set(values[9:]) == {float(np.float32(0.4))}
    np.testing.assert_allclose(values[:10], start * np.arange(1, 11) / 10, rtol=1e-6)
    assert schedule(10) == schedule(9) == np.float32(start)
    assert schedule(100) == schedule(101) == schedule(2**31)
    in_graph, compiled = tf.function(schedule), tf.function(schedule, jit_compile=True)
    for step in (0, 10, 99, 1000):
        rate = schedule(step)
        assert rate.dtype == tf.float32 and rate.shape == () and in_graph(tf.constant(step, tf.int64)) == rate
        np.testing.assert_allclose(compiled(tf.constant(step, tf.int64)), rate, rtol=1e-6, atol=1e-9)
    optimizer = keras.optimizers.SGD(schedule)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert restored.get_config() == optimizer.get_config()
    schedule = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    np.testing.assert_array_equal(rates(schedule, range(100)), values)


HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # Drops at fractions of the run, whatever the warm-up.
        (
            schedules.step(0.1, total_steps=64_000, warmup_steps=400),
            {399: 0.1, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001, 63_999: 0.001},
        ),
        (schedules.step(1.0, total_steps=9, factor=0.5, at=[1 / 3]), dict(enumerate([1.0] * 3 + [0.5] * 6))),
        # Half a cosine over what the warm-up leaves.
        (
            schedules.cosine(2.0, total_steps=110, warmup_steps=10),
            {10: 2.0, 35: 1.0 + HALF, 60: 1.0, 85: 1.0 - HALF, 110: 0.0},
        ),
        (schedules.cosine(2.0, total_steps=100, final=0.25), {0: 2.0, 50: 1.25, 100: 0.5}),
        # The same factor in each step.
        (schedules.range_test(10.0, total_steps=200), dict(enumerate(np.geomspace(1e-6, 10.0, 200)))),
        (
            schedules.range_test(1.0, total_steps=110, warmup_steps=10, initial=1e-3),
            dict(enumerate(np.geomspace(1e-3, 1.0, 100), 10)),
        ),
    ],
)
def test_rates_are_those_of_the_formula(schedule, expected):
    np.testing.assert_allclose(rates(schedule, expected), list(expected.values()), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("peak_at", [0.0, 0.3, 0.333, 1.0])
def test_one_cycle_rises_and_falls_linearly_and_peaks_where_asked(peak_at):
    values = rates(schedules.one_cycle(1.0, total_steps=100, peak_at=peak_at, initial=0.1, final=0.01), range(101))
    peak = round(peak_at * 100)
    assert values.argmax() == min(peak, 99)
    if peak_at == 0.3:
        np.testing.assert_allclose(np.diff(values[:31]), 0.9 / 30, rtol=1e-4)
        np.testing.assert_allclose(np.diff(values[30:]), -0.99 / 70, rtol=1e-4)
