"""The preprocessor of a keras-hub task, applied to each replica's examples.

A task maps its preprocessor over whole batches in its own `fit`. Here each worker maps it over its rows only.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.config import patching
from tfdist.data import autograph


class _Given(threading.local):
    # Whether the data that `fit`, `evaluate` or `predict` receives is preprocessed already.
    preprocessed: bool = False


_given = _Given()


def function_of(model: keras.Model) -> Callable[..., Any] | None:
    """Returns `model.preprocess_samples(x, y, sample_weight)` -> a batch for the model; None: there is no preprocessor.

    Strings [examples] become integers [examples, tokens], for example. It is called in `tf.data`.
    """
    if _given.preprocessed or not hasattr(model, "preprocess_samples") or getattr(model, "preprocessor", True) is None:
        return None
    return autograph.convert(model.preprocess_samples, f"The preprocessor of {type(model).__name__}")


def assume_preprocessing() -> AbstractContextManager[None]:
    """In the block, takes the data of `fit`, `evaluate` and `predict` as preprocessed."""
    return patching.set_in_block(_given, preprocessed=True)


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
