"""`keras.RematScope` and `keras.remat`: what is computed again in the backward pass.

Keras uses `tf.recompute_grad`, which takes no keyword arguments in graphs, such as `training`, and draws dropout anew.
In the graphs of a run, layers are computed again as those of `config.train.recompute`, and functions draw the same.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.variants.recomputation import named_layers

# From before `adopt`.
_of_layers, _of_rest = keras.Layer.rematerialized_call, keras.Operation.rematerialized_call
_of_functions = tf.recompute_grad


def adopt() -> None:
    """Makes both right in the graphs of this process; for a layer of no scope, Keras calls neither method."""
    patching.replace_attribute(
        keras.Layer, "rematerialized_call", lambda *given, **options: _choose(_of_layers, *given, **options)
    )
    patching.replace_attribute(
        keras.Operation, "rematerialized_call", lambda *given, **options: _choose(_of_rest, *given, **options)
    )
    patching.replace_attribute(tf, "recompute_grad", lambda function: named_layers.of_function(function, _of_functions))


def _choose(of_keras: Callable[..., Any], *given: Any, **options: Any) -> Callable[..., Any]:
    return named_layers.of_scope(of_keras, *given, **options)
