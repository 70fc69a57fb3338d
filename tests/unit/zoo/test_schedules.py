"""Learning rates: the numbers at the borders, the shape between them, and precision far out."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.zoo import schedules

ALL = [schedules.constant, schedules.step, schedules.cosine, schedules.one_cycle, schedules.range_test]
# The first rate after the warm-up as a fraction of the peak; 1 of the others.
FIRST = {"one_cycle": 0.1, "range_test": 1e-7}


def rates(schedule, steps):
    return np.array([schedule(step).numpy() for step in steps], np.float64)


@pytest.mark.parametrize("make", ALL)
def test_is_a_float32_scalar_in_eager_mode_and_in_a_graph(make):
    schedule = make(0.4, total_steps=100, warmup_steps=10)
    in_graph = tf.function(schedule)
    compiled = tf.function(schedule, jit_compile=True)
    for step in (0, 9, 10, 50, 99, 100, 1000):
        rate = schedule(step)
        assert rate.dtype == tf.float32 and rate.shape == ()
        assert in_graph(tf.constant(step, tf.int64)) == rate
        np.testing.assert_allclose(compiled(tf.constant(step, tf.int64)), rate, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("warmup_steps", [0, 1, 10])
def test_every_step_of_the_run_has_a_rate_above_zero_and_at_most_the_peak(make, warmup_steps):
    values = rates(make(0.4, total_steps=100, warmup_steps=warmup_steps), range(100))
    assert (values > 0).all()
    assert values.max() == np.float32(0.4)
    assert (values == np.float32(0.4)).sum() == {"constant": 100 - max(warmup_steps - 1, 0), "one_cycle": 1}.get(
        make.__name__, (values == np.float32(0.4)).sum()
    )


@pytest.mark.parametrize("make", ALL)
def test_warm_up_rises_in_equal_steps_to_the_first_rate_of_the_schedule(make):
    schedule = make(0.4, total_steps=100, warmup_steps=10)
    start = 0.4 * FIRST.get(make.__name__, 1.0)
    np.testing.assert_allclose(rates(schedule, range(10)), start * np.arange(1, 11) / 10, rtol=1e-6)
    assert schedule(10) == schedule(9) == np.float32(start)


@pytest.mark.parametrize("make", ALL)
def test_after_the_run_the_rate_stays(make):
    schedule = make(0.4, total_steps=100)
    assert schedule(100) == schedule(101) == schedule(2**31)


def test_constant():
    assert set(rates(schedules.constant(0.1, total_steps=5), range(7))) == {float(np.float32(0.1))}


def test_step_drops_at_fractions_of_the_run():
    schedule = schedules.step(0.1, total_steps=64_000, warmup_steps=400)
    expected = {399: 0.1, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001, 63_999: 0.001}
    np.testing.assert_allclose(rates(schedule, expected), list(expected.values()), rtol=1e-6)
    schedule = schedules.step(1.0, total_steps=9, factor=0.5, at=[1 / 3])
    np.testing.assert_array_equal(rates(schedule, range(9)), [1.0] * 3 + [0.5] * 6)


def test_cosine_is_half_a_cosine_over_what_the_warm_up_leaves():
    schedule = schedules.cosine(2.0, total_steps=110, warmup_steps=10)
    expected = {10: 2.0, 35: 1.0 + math.sqrt(0.5), 60: 1.0, 85: 1.0 - math.sqrt(0.5), 110: 0.0}
    np.testing.assert_allclose(rates(schedule, expected), list(expected.values()), rtol=1e-6, atol=1e-9)
    values = rates(schedule, range(10, 111))
    assert (np.diff(values) < 0).all()
    schedule = schedules.cosine(2.0, total_steps=100, final=0.25)
    np.testing.assert_allclose(rates(schedule, (0, 50, 100)), [2.0, 1.25, 0.5], rtol=1e-6)


def test_one_cycle_rises_and_falls_linearly():
    schedule = schedules.one_cycle(1.0, total_steps=100, peak_at=0.3, initial=0.1, final=0.01)
    values = rates(schedule, range(101))
    np.testing.assert_allclose(values[[0, 15, 30, 65, 100]], [0.1, 0.55, 1.0, 0.505, 0.01], rtol=1e-6)
    np.testing.assert_allclose(np.diff(values[:31]), 0.9 / 30, rtol=1e-4)
    np.testing.assert_allclose(np.diff(values[30:]), -0.99 / 70, rtol=1e-4)


@pytest.mark.parametrize("peak_at", [0.0, 0.333, 0.5, 1.0])
def test_one_cycle_peaks_where_asked(peak_at):
    values = rates(schedules.one_cycle(1.0, total_steps=50, peak_at=peak_at), range(50))
    assert values.argmax() == min(round(peak_at * 50), 49)
    assert (np.diff(values[: values.argmax() + 1]) >= 0).all() and (np.diff(values[values.argmax() :]) < 0).all()


def test_range_test_rises_by_the_same_factor_in_each_step():
    schedule = schedules.range_test(10.0, total_steps=200)
    np.testing.assert_allclose(rates(schedule, range(200)), np.geomspace(1e-6, 10.0, 200), rtol=1e-6)
    schedule = schedules.range_test(1.0, total_steps=110, warmup_steps=10, initial=1e-3)
    np.testing.assert_allclose(rates(schedule, range(10, 110)), np.geomspace(1e-3, 1.0, 100), rtol=1e-6)
    with pytest.raises(ValueError, match="initial must be above 0"):
        schedules.range_test(1.0, total_steps=10, initial=0.0)


@pytest.mark.parametrize("make", ALL)
def test_counts_steps_exactly_up_to_two_to_the_31(make):
    total = 2**31 - 1
    schedule = make(1.0, total_steps=total, warmup_steps=2**29)
    for step in (0, 2**24, 2**24 + 1, 2**29 - 1):
        start = FIRST.get(make.__name__, 1.0)
        assert schedule(tf.constant(step, tf.int64)) == np.float32(start * ((step + 1) / 2**29))
    short = schedules.step(1.0, total_steps=total, at=[0.75])
    border = round(0.75 * total)
    assert rates(short, (border - 1, border)).tolist() == [1.0, float(np.float32(0.1))]
    cosine = schedules.cosine(1.0, total_steps=total)
    step = 2**30 + 2**24 + 1
    assert cosine(step) == np.float32(0.5 + 0.5 * math.cos(math.pi * step / total))


@pytest.mark.parametrize("make", ALL)
def test_keras_writes_and_reads_it_within_an_optimizer(make):
    schedule = make(0.4, total_steps=100, warmup_steps=10)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert restored.get_config() == optimizer.get_config()
    schedule = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(schedule))
    np.testing.assert_array_equal(
        rates(schedule, range(100)), rates(make(0.4, total_steps=100, warmup_steps=10), range(100))
    )


def test_optimizer_uses_it():
    optimizer = keras.optimizers.SGD(schedules.cosine(0.5, total_steps=4, warmup_steps=2))
    weight = keras.Variable(np.zeros(1, np.float32))
    optimizer.build([weight])
    step = tf.function(lambda: optimizer.apply([tf.ones(1)], [weight]))
    seen = [0.0]
    for _ in range(4):
        step()
        seen.append(-float(weight.numpy()[0]))
    np.testing.assert_allclose(np.diff(seen), [0.25, 0.5, 0.5, 0.25], rtol=1e-6)


def test_settable_is_a_number_that_callbacks_set():
    optimizer = keras.optimizers.SGD(schedules.settable(0.5, total_steps=4, warmup_steps=0))
    optimizer.learning_rate = 0.25
    assert float(keras.ops.convert_to_numpy(optimizer.learning_rate)) == 0.25
    with pytest.raises(TypeError, match="not settable"):
        keras.optimizers.SGD(schedules.constant(0.5, total_steps=4)).learning_rate = 0.25


@pytest.mark.parametrize(
    "make, arguments, message",
    [
        ("constant", {"peak": -0.1}, r"peak must be .* Received: -0.1"),
        ("constant", {"peak": math.nan}, r"peak must be .* Received: nan"),
        ("constant", {"total_steps": 0}, r"total_steps must be at least 1. Received: 0"),
        ("constant", {"total_steps": 10.0}, r"total_steps must be an integer number of steps. Received: 10.0"),
        ("settable", {"peak": -0.1}, r"peak must be .* Received: -0.1"),
        ("settable", {"warmup_steps": 3}, r"warmup_steps must be 0 if callbacks set the rate.*Received: 3"),
        ("cosine", {"warmup_steps": 10}, r"warmup_steps must .* Received: warmup_steps=10, total_steps=10"),
        ("cosine", {"warmup_steps": -1}, r"warmup_steps must .* Received: warmup_steps=-1"),
        ("cosine", {"final": 1.5}, r"final must be a fraction .* Received: 1.5"),
        ("one_cycle", {"peak_at": -0.5}, r"peak_at must be a fraction .* Received: -0.5"),
        ("one_cycle", {"initial": 0}, r"initial must be above 0"),
        ("step", {"factor": 0.0}, r"factor must be .* Received: 0.0"),
        ("step", {"at": [0.5, 0.5]}, r"at must be increasing fractions .* Received: \[0.5, 0.5\]"),
        ("step", {"at": [0.5, 30]}, r"at must be increasing fractions .* Received: \[0.5, 30\]"),
        ("step", {"at": [0.2, 0.5], "warmup_steps": 4}, r"a drop at step 2 of 10, and the warm-up takes 4 steps"),
    ],
)
def test_schedules_refuse_wrong_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(schedules, make)(**{"peak": 0.1, "total_steps": 10} | arguments)
