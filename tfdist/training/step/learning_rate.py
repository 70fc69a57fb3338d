"""The learning rate of a config: the one it sets, or the optimizer's default. Imports no TensorFlow by itself."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from typing import Any

from tfdist.config import schema, specs

# Training hardly ever works at more than this many times the usual rate.
_TOO_HIGH = 30
# The usual rate for SGD is not Keras' default of 0.01 (arXiv 1512.03385).
_USUAL = {"keras.optimizers:SGD": 0.1}


def resolve(config: schema.Config) -> schema.Config:
    """Returns the config with a number as `learning_rate.peak`, and without `optimizer["learning_rate"]`.

    The number is `learning_rate.peak`, or `optimizer["learning_rate"]`, or the default of the optimizer's function.

    Raises:
        ValueError: both are set and differ, the optimizer's function has no default, or one is not a number.
    """
    spec, peak = dict(config.optimizer), config.learning_rate.peak
    given = spec.pop("learning_rate", None)
    number = isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf
    if given is not None and not number:
        raise ValueError(
            "config.optimizer.learning_rate must be a number, at least 0; a schedule is config.learning_rate.schedule. "
            f"Received: {given!r}"
        )
    usual = schema.default_optimizer()
    of_default = (spec["target"], given) == (usual["target"], usual["learning_rate"])
    if peak is not None and given not in (None, peak) and not of_default:
        raise ValueError(
            f"config.learning_rate.peak={peak:g} and config.optimizer.learning_rate={given:g} contradict each other: "
            f"set one of them, such as --config.learning_rate.peak={given:g}."
        )
    if peak is None:
        peak = default(spec) if given is None else float(given)
    if peak is None:
        raise ValueError(
            f"config.learning_rate.peak is not set, and {spec['target']} has no default learning rate: set it, such "
            "as --config.learning_rate.peak=0.001."
        )
    rate = dataclasses.replace(config.learning_rate, peak=peak)
    return dataclasses.replace(config, optimizer=spec, learning_rate=rate)


def default(optimizer: Mapping[str, Any]) -> float | None:
    """Returns the default of the optimizer's parameter `learning_rate`, or else of its first parameter."""
    parameters = inspect.signature(specs.resolve(dict(optimizer), field="config.optimizer")).parameters
    first = parameters.get("learning_rate") or next(iter(parameters.values()), None)
    number = first is not None and isinstance(first.default, int | float) and not isinstance(first.default, bool)
    return float(first.default) if number else None


def peak(config: schema.Config) -> float:
    """Returns the highest learning rate of a resolved config, scaled to its batch (arXiv 1706.02677, section 2.1)."""
    rate = config.learning_rate
    factor = config.data.batch_size / rate.reference_batch_size
    return rate.peak * {"none": 1.0, "linear": factor, "sqrt": factor**0.5}[rate.scaling]


def note(config: schema.Config) -> str:
    """Returns a warning if the learning rate of a resolved config is far above the usual rate of its optimizer."""
    usual = _USUAL.get(config.optimizer["target"]) or default(config.optimizer)
    if not usual or config.learning_rate.peak <= _TOO_HIGH * usual:
        return ""
    return (
        f"config.learning_rate.peak={config.learning_rate.peak:g} is {config.learning_rate.peak / usual:.0f} times the "
        f"usual rate of {config.optimizer['target']}, {usual:g}: the loss will probably not fall. "
        f"Try --config.learning_rate.peak={usual:g}."
    )


def describe(config: schema.Config) -> str:
    """Returns optimizer, rate and schedule of a resolved config in words, for the log."""
    schedule = config.learning_rate.schedule["target"].rpartition(":")[2]
    warmup = config.learning_rate.warmup_epochs
    after = f" after a warm-up of {warmup:g} epochs" if warmup else ""
    return f"{specs.describe(config.optimizer)}, learning rate {peak(config):.4g}, {schedule}{after}"
