"""Learning rates as functions of the optimizer step: constant, step, cosine, one-cycle and range test, with warm-up.

All five have the same warm-up (Goyal et al., arXiv 1706.02677): during the first `warmup_steps` the learning rate
increases linearly, in equal steps, to the first rate of the main schedule. The main schedule covers the rest of the
run. The rate is above zero in every step: the last step has the number `total_steps` - 1, and a decay to zero reaches
zero only at `total_steps`.
`settable` is not a schedule but a number that callbacks can set.

Computed in float64 and returned as a float32 scalar: float32 cannot represent all steps above 2**24.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def constant(peak: float, *, total_steps: int, warmup_steps: int = 0) -> "Schedule":
    """Returns the rate `peak` at every step after the warm-up.

    Raises ValueError if `peak` is negative or not finite, or `warmup_steps` is not within 0 .. `total_steps` - 1.
    """
    return Schedule("constant", peak, total_steps, warmup_steps)


def step(
    peak: float, *, total_steps: int, warmup_steps: int = 0, factor: float = 0.1, at: Sequence[float] = (0.5, 0.75)
) -> "Schedule":
    """Returns a rate that starts at `peak` and is multiplied by `factor` at each position `at`.

    Args:
        peak: the rate after the warm-up.
        warmup_steps: warm-up steps, included in total_steps.
        at: positions of the drops as fractions of the whole run, including warm-up: 0.5 is the first step of the
            second half. The defaults are those of He et al. 2015 for CIFAR-10 (arXiv 1512.03385): 32k and 48k of 64k
            steps.

    Raises:
        ValueError: as `constant`; or `factor` is not above 0, or `at` does not increase within (0, 1), or falls into
            the warm-up.
    """
    return Schedule("step", peak, total_steps, warmup_steps, factor=factor, at=tuple(at))


def cosine(peak: float, *, total_steps: int, warmup_steps: int = 0, final: float = 0.0) -> "Schedule":
    """Returns a rate that falls from `peak` to `final` x `peak` along half a cosine (arXiv 1608.03983, one period).

    Raises ValueError as `constant`, or if `final` is not within 0 .. 1.
    """
    return Schedule("cosine", peak, total_steps, warmup_steps, final=final)


def one_cycle(
    peak: float,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    peak_at: float = 0.3,
    initial: float = 0.1,
    final: float = 0.0,
) -> "Schedule":
    """Returns a rate that rises linearly to `peak` and then falls linearly (Smith and Topin, arXiv 1708.07120).

    The rise is already a warm-up; `warmup_steps` come before it.

    Args:
        peak: the highest rate, reached at exactly one step.
        warmup_steps: steps before the cycle starts, over which the rate rises to `initial` x `peak`.
        peak_at: position of the peak as a fraction of the cycle; rounded to a whole step.
        initial: the rate at the start of the cycle, as a fraction of `peak`.
        final: the rate at the end of the cycle, as a fraction of `peak`.

    Raises:
        ValueError: as `constant`; or `peak_at` or `final` is not within 0 .. 1, or `initial` is not within (0, 1].
    """
    return Schedule("one_cycle", peak, total_steps, warmup_steps, peak_at=peak_at, initial=initial, final=final)


def range_test(peak: float, *, total_steps: int, warmup_steps: int = 0, initial: float = 1e-7) -> "Schedule":
    """Returns a rate that rises from `initial` x `peak` to `peak` by the same factor in each step.

    The loss by the rate shows which rates are too low and which too high (Smith, arXiv 1506.01186, section 3.3):
    docs/sweeps.md.

    Raises ValueError as `constant`, or if `initial` is not within (0, 1].
    """
    return Schedule("exponential", peak, total_steps, warmup_steps, initial=initial)


def settable(peak: float, *, total_steps: int, warmup_steps: int = 0) -> float:
    """Returns `peak` as a number, which callbacks such as ReduceLROnPlateau can set, unlike a schedule.

    Raises ValueError if `peak` is negative or not finite, or `warmup_steps` is not 0.
    """
    _check(peak, total_steps, 0)
    if warmup_steps:
        raise ValueError(
            "warmup_steps must be 0 if callbacks set the rate: set learning_rate.warmup_epochs to 0, or use "
            f"another schedule. Received: {warmup_steps}"
        )
    return float(peak)


@keras.saving.register_keras_serializable("tfdist")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate schedule with warm-up; created by the functions above.

    Keras can save and load it as part of an optimizer. Loading requires that `tfdist.zoo.schedules` is imported.
    """

    def __init__(self, shape: str, peak: float, total_steps: int, warmup_steps: int, **arguments: Any):
        _check(peak, total_steps, warmup_steps, **arguments)
        self.shape, self.peak, self.arguments = shape, float(peak), arguments
        self.total_steps, self.warmup_steps = total_steps, warmup_steps

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        """Returns the rate at `step` (integer scalar, from 0), a float32 scalar. Constant after the end of the run."""
        step = tf.cast(step, tf.float64)
        first, total = float(self.warmup_steps), float(self.total_steps)
        proper = tf.clip_by_value(step, first, total)
        fraction = _SHAPES[self.shape](proper, first, total, **self.arguments)
        if self.warmup_steps:
            start = _SHAPES[self.shape](tf.constant(first, tf.float64), first, total, **self.arguments)
            fraction = tf.where(step < first, start * (step + 1.0) / first, fraction)
        return tf.cast(self.peak * fraction, tf.float32)

    def get_config(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "peak": self.peak,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            **self.arguments,
        }


def _check(peak, total_steps, warmup_steps, **arguments):
    if not (math.isfinite(peak) and peak >= 0):
        raise ValueError(f"peak must be a finite learning rate of at least 0. Received: {peak}")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            "warmup_steps must be at least 0 and less than total_steps: train for longer, or shorten the warm-up. "
            f"Received: warmup_steps={warmup_steps}, total_steps={total_steps}"
        )
    for name in ("final", "peak_at", "initial"):
        if not 0 <= arguments.get(name, 0) <= 1:
            raise ValueError(f"{name} must be a fraction within 0 .. 1. Received: {arguments[name]}")
    if arguments.get("initial") == 0:
        raise ValueError("initial must be above 0: otherwise the first step has no effect. Received: 0")
    if "factor" in arguments and not (math.isfinite(arguments["factor"]) and arguments["factor"] > 0):
        raise ValueError(f"factor must be a finite number above 0. Received: {arguments['factor']}")
    positions = list(arguments.get("at", ()))
    if positions != sorted(set(positions)) or not all(0 < p < 1 for p in positions):
        raise ValueError(f"at must be increasing fractions of the run, each within (0, 1). Received: {positions}")
    if warmup_steps > 0 and positions and round(positions[0] * total_steps) <= warmup_steps:
        raise ValueError(
            f"at={positions} has a drop at step {round(positions[0] * total_steps)} of {total_steps}, and the "
            f"warm-up takes {warmup_steps} steps: drop later, or shorten the warm-up."
        )


# Each gives the rate as a fraction of the peak at `step` (float64), for first <= step <= total.


def _constant(step, first, total):
    return tf.ones_like(step)


def _step(step, first, total, *, factor, at):
    starts = tf.constant([round(position * int(total)) for position in at], tf.float64)
    fractions = tf.constant([factor**drops for drops in range(len(at) + 1)], tf.float64)
    return tf.gather(fractions, tf.math.count_nonzero(step >= starts))


def _cosine(step, first, total, *, final):
    return final + (1.0 - final) * 0.5 * (1.0 + tf.cos(math.pi * (step - first) / (total - first)))


def _one_cycle(step, first, total, *, peak_at, initial, final):
    top = min(first + round(peak_at * (total - first)), total - 1.0)
    rising = initial + (1.0 - initial) * (step - first) / max(top - first, 1.0)
    falling = final + (1.0 - final) * (total - step) / max(total - top, 1.0)
    return tf.where(step < top, rising, falling)


def _exponential(step, first, total, *, initial):
    left = (total - 1.0 - step) / max(total - 1.0 - first, 1.0)
    return tf.exp(math.log(initial) * tf.maximum(left, 0.0))


_SHAPES = {
    "constant": _constant,
    "step": _step,
    "cosine": _cosine,
    "one_cycle": _one_cycle,
    "exponential": _exponential,
}
