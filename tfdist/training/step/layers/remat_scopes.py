"""`keras.RematScope` and `keras.remat`: what is computed again in the backward pass.

Keras does it by `tf.recompute_grad`, which takes no keyword arguments in graphs, such as `training`, and draws dropout
anew. In the graphs of a run the layers of a scope are computed again as those of `config.train.recompute`, and
functions draw the same numbers again.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching, specs

# From before `take_over`.
_of_layers, _of_operations = keras.Layer.rematerialized_call, keras.Operation.rematerialized_call
_of_functions = tf.recompute_grad


def take_over() -> None:
    """Makes both right in the graphs of this process; for a layer of no scope, Keras calls neither method."""
    patching.put(keras.Layer, "rematerialized_call", _for_layer)
    patching.put(keras.Operation, "rematerialized_call", _for_operation)
    patching.put(tf, "recompute_grad", lambda function: specs.part("keras.remat")(function, _of_functions))


def mode(layer: keras.Layer) -> str | None:
    """Returns the mode of the scope in which a layer was made; None: of none, or of one that changes nothing."""
    scope = layer._remat_mode
    return scope and scope.mode


def _for_layer(layer: keras.Layer, original: Callable[..., Any], *args: Any, **keywords: Any) -> Callable[..., Any]:
    """Returns what is called in the place of `original`, a layer's `call`."""
    # Activations have no keyword arguments in graphs, and draw nothing.
    if tf.executing_eagerly() or mode(layer) in (None, "activations"):
        return _of_layers(layer, original, *args, **keywords)
    return specs.part("keras.RematScope")(layer, original, layer._remat_mode)


def _for_operation(
    operation: keras.Operation, original: Callable[..., Any], *args: Any, **keywords: Any
) -> Callable[..., Any]:
    """As above, for an operation that is no layer: it keeps nothing but its inputs and its outputs."""
    if isinstance(operation, keras.Layer):
        return _of_operations(operation, original, *args, **keywords)
    return original
