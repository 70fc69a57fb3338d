"""The outputs of a model: logits, or probabilities with the logits before their softmax or sigmoid.

A loss takes the logits: the probability of a class may be rounded to 0, and its logarithm has no gradient then. Keras'
losses also take the logits, but only if the outputs are float32.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.config import user_code

# Operations that compute probabilities, and operations after them that change no value.
_ACTIVATIONS = ("Softmax", "Sigmoid")
_CONVERSIONS = ("Cast", "Identity", "IdentityN")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """The outputs of a model for a batch."""

    # float32 [n, ...].
    values: tf.Tensor
    # "softmax" or "sigmoid" if it computed `values`, otherwise "".
    activation: str
    # float32 [n, ...]: the input of the activation; `values` without one.
    logits: tf.Tensor


def check_keys(batch: Mapping[str, tf.Tensor], *keys: str) -> None:
    """Checks that a batch has the keys that the objective reads; raises ValueError, which names a missing one."""
    for key in keys:
        if key not in batch:
            raise ValueError(
                f"The objective reads batch[{key!r}], but the batch has: {', '.join(sorted(batch))}. Set the keys in "
                "config.objective."
            )


def call(model: Any, inputs: tf.Tensor, *, training: bool) -> tf.Tensor:
    """Returns the outputs of a model, float32 [n, ...]; raises ValueError if it has several, or refuses the inputs."""
    return tf.cast(_call_model(model, inputs, training), tf.float32)


def compute(model: Any, inputs: tf.Tensor, *, training: bool) -> Outputs:
    """Calls a model with one output, and finds out whether it ends in a softmax or sigmoid; raises as `call`.

    Only the operations of a graph show it. Outside of a graph, where a run makes its checks on two examples, a model
    whose outputs may be probabilities is traced once more.
    """
    outputs = _call_model(model, inputs, training)
    if not tf.executing_eagerly():
        return _split(outputs)
    values = tf.cast(outputs, tf.float32)
    if not tf.reduce_all((values >= 0.0) & (values <= 1.0)) or not tf.reduce_any(values != 0.0):
        return Outputs(values=values, activation="", logits=values)
    found = []

    def trace(inputs: tf.Tensor) -> tf.Tensor:
        found.append(_split(_one_output(model(inputs, training=training))))
        return found[-1].logits

    logits = tf.function(trace, autograph=False)(inputs)
    return Outputs(values=values, activation=found[-1].activation, logits=logits)


def last_layer(model: Any) -> str:
    """Returns the name of the last layer for a message: "the layer 'probabilities'", or "the model" without layers."""
    layers = getattr(model, "layers", None)
    return f"the layer {layers[-1].name!r}" if layers else "the model"


def _call_model(model: Any, inputs: tf.Tensor, training: bool) -> tf.Tensor:
    """Returns the only output of a model; raises ValueError with the shapes if the model refuses the inputs.

    A run calls it outside of a graph at its start, with two examples.
    """
    try:
        return _one_output(model(inputs, training=training))
    except ValueError as error:
        refused = str(error).startswith(("Exception encountered when calling", "Input 0 "))
        # It may be raised in a layer of the user's, whose line is then shown.
        if not refused or not tf.executing_eagerly() or user_code.place(error):
            raise
        taken = ", ".join(str(tuple(one.shape[1:])) for one in getattr(model, "inputs", None) or ())
        raise ValueError(
            f"The model {model.name!r} takes examples of shape {taken or 'unknown'}, and cannot be called with those "
            f"of the data, of shape {tuple(inputs.shape[1:])}: {user_code.message(error)} Change config.model or "
            "config.data."
        ) from None


def _one_output(outputs: Any) -> tf.Tensor:
    if not tf.is_tensor(outputs):
        raise ValueError(
            "This objective needs a model with one output. Received: a "
            f"{type(outputs).__name__}. Set config.objective.target to another objective."
        )
    return outputs


def _split(outputs: tf.Tensor) -> Outputs:
    """Returns the outputs and the logits before the activation, for a tensor of a graph."""
    last, passed = outputs, set()
    while last.op.type in _CONVERSIONS:
        passed.add(last.op.type)
        last = last.op.inputs[last.value_index]
    if "IdentityN" in passed and last.op.type in _ACTIVATIONS:
        raise ValueError(
            f"The layer with the {last.op.type.lower()} of the outputs is recomputed, or has a gradient of its own, so "
            "that a loss cannot take the logits: take it out of config.train.recompute, or let the model end in logits."
        )
    activation = last.op.type.lower() if last.op.type in _ACTIVATIONS else ""
    logits = last.op.inputs[0] if activation else outputs
    return Outputs(values=tf.cast(outputs, tf.float32), activation=activation, logits=tf.cast(logits, tf.float32))
