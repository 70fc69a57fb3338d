"""The preprocessor of a keras-hub task, applied to each replica's examples.

A task maps its preprocessor over whole batches in its own `fit`. Here each worker maps it over its rows only.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.data import autograph

# Whether the data that `fit`, `evaluate` or `predict` receives is preprocessed already.
_applied = contextvars.ContextVar("_applied", default=False)


def function_of(model: keras.Model) -> Callable[..., Any] | None:
    """Returns `model.preprocess_samples(x, y, sample_weight)` -> a batch for the model; None: there is no preprocessor.

    Strings [examples] become integers [examples, tokens], for example. It is called in `tf.data`.
    """
    if _applied.get() or not hasattr(model, "preprocess_samples") or getattr(model, "preprocessor", True) is None:
        return None
    return autograph.convert(model.preprocess_samples, f"The preprocessor of {type(model).__name__}")


@contextlib.contextmanager
def assume_preprocessing() -> Iterator[None]:
    """Takes the data of `fit`, `evaluate` and `predict` as preprocessed."""
    token = _applied.set(True)
    try:
        yield
    finally:
        _applied.reset(token)


def as_arrays(data: Any) -> Any:
    """Returns nested data in which a list is one array, such as a list of strings, as keras-hub takes it."""
    if isinstance(data, tuple):
        return tuple(as_arrays(part) for part in data)
    if isinstance(data, dict):
        return {name: as_arrays(part) for name, part in data.items()}
    if isinstance(data, list | np.ndarray):
        with tf.device("CPU:0"):
            return tf.convert_to_tensor(data)
    return data


def pipeline_class(model: keras.Model) -> type | None:
    """Returns the class of `model` whose `fit` preprocesses the data: `PipelineModel` of keras-hub."""
    found = (kind for kind in type(model).__mro__ if {"fit", "preprocess_samples"} <= set(vars(kind)))
    return next(found, None)
