"""`compile(run_eagerly=True)`: on one replica, steps run in Python, to print and to set breakpoints."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras_fit.own_step import plain_values


@contextlib.contextmanager
def eager_if(eagerly: bool) -> Iterator[None]:
    """If `eagerly`, calls the bodies of functions of tf.function in Python within the context."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(before or eagerly)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def runs_eagerly(model: keras.Model) -> bool:
    """Returns whether the steps of a model run in Python, by `compile` or for all functions."""
    return model.run_eagerly or tf.config.functions_run_eagerly()


def run_as_keras(
    model: keras.Model,
    traces: Mapping[str, plain_values.Trace],
    traced: set[str],
    kind: str,
    run_steps: Callable[..., Any],
    *args: Any,
) -> Any:
    """Calls a function of steps, "train" or "test", which is traced with the values that count, or runs in Python.

    Args:
        traced: the kinds that were called before in this run.
    """
    if kind not in traced and not runs_eagerly(model):
        traced.add(kind)
        with plain_values.as_traced(model, traces[kind], traces_now=True):
            run_steps.get_concrete_function(*args)
    with eager_if(model.run_eagerly):
        return run_steps(*args)


def call_without_effect(model: keras.Model, function: Callable[[Any], Any], element_spec: Any) -> None:
    """Calls a function of a batch with `element_spec`, nested tf.TensorSpec [batch, ...]; variables keep their values.

    It is traced, but not with Keras' symbolic tensors, which are neither ragged nor sparse. With `run_eagerly`, where
    layers may use `.numpy()` and breakpoints, it gets one example of zeros, or of empty strings.
    """

    def example(spec: Any) -> Any:
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(f"compile(run_eagerly=True) needs dense tensors. Received: {spec}")
        return tf.zeros([1, *(1 if size is None else size for size in spec.shape[1:])], spec.dtype)

    with plain_values.put_back(model), keras.StatelessScope(collect_losses=True), keras.SymbolicScope():
        if model.run_eagerly:
            function(tf.nest.map_structure(example, element_spec))
        else:
            tf.function(function, autograph=False).get_concrete_function(element_spec)
