"""AutoGraph for users' functions only.

AutoGraph converts Python's `if`, `for` and `while` over tensors to operations. tfdist's own functions do not use them
and are traced with `tf.function(autograph=False)`: converting them would take longer than tracing, at every start.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

from tfdist.config import user_code
from tfdist.data import description, guard

_OWN = __name__.partition(".")[0]


def convert(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns `function` with AutoGraph enabled for it and all that it calls; functions of tfdist are unchanged.

    An error in it becomes a ValueError that names the line and the batch.
    """
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if str(getattr(plain, "__module__", "")).partition(".")[0] == _OWN:
        return function
    converted = api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))

    @functools.wraps(plain)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return converted(*args, **keywords)
        except tf.errors.OpError:
            raise  # Of the data or the devices: the loop searches for the example that cannot be read.
        except Exception as error:
            batch = next((each for each in args if isinstance(each, dict)), None)
            raise ValueError(user_code.explain(error, name, batch)) from error

    call.__module__ = __name__  # Not converted twice.
    return call


def convert_read(source: Any) -> Callable[..., Any]:
    """Returns `source.read`, converted by `convert`; its batches are checked as in `_check_batches`."""
    return _check_batches(source.read, "config.data.source: read(ids)")


def convert_prepare(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `config.data.prepare`, converted by `convert`; its batches are checked as in `_check_batches`."""
    return _check_batches(prepare, "config.data.prepare")


def _check_batches(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns `function`, converted; it raises ValueError unless its batch has as many rows as its last argument.

    The batch gets a static number of rows, which `tf.numpy_function` loses. Functions of tfdist are unchanged.
    """
    converted = convert(function, name)
    if converted is function:
        return function
    converted = guard.around(converted, name, dict, in_input=True)

    @functools.wraps(converted)
    def call(*args: Any, **keywords: Any) -> Any:
        batch = converted(*args, **keywords)
        rows = args[-1].shape[0]
        description.check_batch(batch, name, rows)
        return {key: _with_rows(value, rows) for key, value in batch.items()}

    call.__module__ = __name__  # Not converted twice.
    return call


def _with_rows(value: Any, rows: int | None) -> Any:
    known = isinstance(value, tf.Tensor) and value.shape.rank and value.shape[0] is None and rows is not None
    return tf.ensure_shape(value, [rows, *value.shape[1:]]) if known else value
