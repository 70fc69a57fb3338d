"""Errors of TensorFlow and Keras that data of a script causes, in the words of the script."""

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import user_code
from tfdist.keras_fit import compiled_model

# The reason in a message of Keras, which lists the arguments of the call after it.
_REASON = re.compile(r"\x1b\[1m(.*?)\x1b\[0m", re.DOTALL)
# Checks of tfdist in a step and in the data, each with the numbers that it compares.
_CHECK = re.compile(r"\[((?:A batch holds|A step needs|The layer)[^\]]*)\] \[([^\]]*)\]")
_KERAS = os.path.join(os.path.dirname(keras.__file__), "")


@contextlib.contextmanager
def name_shapes(model: keras.Model, element_spec: Any) -> Iterator[None]:
    """In the block, which calls `model`, raises one paragraph with the shapes of the data if Keras refuses them."""
    try:
        yield
    except (ValueError, RuntimeError) as error:  # Keras 3.12 raises a RuntimeError.
        reason = _reason(error)
        own_step = compiled_model.overrides(model, "train_step")  # It gets batches in any form.
        if not reason or own_step or user_code.place(error):  # It may be raised in a layer of the user's.
            raise
        x, y, _ = keras.utils.unpack_x_y_sample_weight(element_spec)
        inputs = getattr(model, "inputs", None)
        received = f"x {_shapes(x)}" + ("" if y is None else f", y {_shapes(y)}")
        if inputs and not _fit(x, inputs):
            text = f"The model {model.name!r} takes examples of shape {_shapes(inputs)}. Received: {received}"
            exchanged = _fit(y, inputs)
        else:
            text = f"The model {model.name!r} cannot be used with examples of shape {received}: {reason}"
            ranked = all(isinstance(one, tf.TensorSpec) and one.shape.rank for one in (x, y))
            exchanged = ranked and y.shape.rank > x.shape.rank
        raise ValueError(f"{text.removesuffix('.')}. Are x and y exchanged?" if exchanged else text) from None


def _reason(error: Exception) -> str:
    """Returns the reason that Keras gives for refusing a shape; "" for other errors."""
    text = str(error)
    marked = _REASON.search(text)
    if marked:
        return " ".join(marked[1].split())
    # Keras removes its own frames: the last one may be that of a method that tfdist replaces.
    of_keras = traceback.extract_tb(error.__traceback__)[-1].filename.startswith((_KERAS, user_code.PACKAGE))
    return " ".join(text.split()) if of_keras and re.search(r"\b(shape|rank|ndim)\b", text) else ""


def _fit(data: Any, inputs: list[Any]) -> bool:
    """Returns whether specs of data have the shapes of a model's inputs."""
    specs = tf.nest.flatten(data)
    return len(specs) == len(inputs) and all(
        isinstance(spec, tf.TensorSpec) and spec.shape.is_compatible_with([None, *one.shape[1:]])
        for spec, one in zip(specs, inputs, strict=True)
    )


def _shapes(specs: Any) -> str:
    """Returns the shapes of an example as text: "(8,)", or "(8,), (28, 28, 1)"."""
    return ", ".join(str(tuple(one.shape[1:])) for one in tf.nest.flatten(specs) if one is not None)


@contextlib.contextmanager
def explain(steps: int) -> Iterator[None]:
    """In the block, raises a ValueError for ends, rows and texts in the data that the model cannot be trained with."""
    try:
        yield
    except (tf.errors.OutOfRangeError, tf.errors.InvalidArgumentError) as error:
        if found := _CHECK.search(error.message):
            raise ValueError(f"{found[1]} {found[2]}") from None
        if (
            isinstance(error, tf.errors.InvalidArgumentError)
            and "OutOfRangeError: End of sequence" not in error.message
        ):
            raise
        raise ValueError(
            f"The data ended before an epoch of {steps} steps was complete, or before the last epoch. A generator must "
            "give steps_per_epoch batches for each epoch: let it start again at its end, or lower steps_per_epoch."
        ) from None
    except tf.errors.UnimplementedError as error:
        if "Cast string to" not in error.message:
            raise
        raise ValueError(
            "The data holds text, which the model computes with: convert numbers with array.astype('float32'), or "
            "let a layer such as keras.layers.StringLookup be the first to read it."
        ) from None
