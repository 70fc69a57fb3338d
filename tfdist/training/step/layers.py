"""The layers of a model, the variables that they update themselves, and faster 1x1 convolutions on CPUs."""

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching

# Of a replica: with more, the product was slower than the convolution for some sizes without AVX512.
_MOST_POSITIONS = 1024


def of_all_depths(model: keras.Model) -> list[keras.Layer]:
    """Returns the model and all of its layers, those in lists, dicts and nested models included."""
    return [*model._flatten_layers()]


def statistics(model: keras.Model, *, frozen: bool = False) -> list[keras.Variable]:
    """Returns the float variables that layers made non-trainable, such as moving averages.

    Args:
        frozen: whether to include those of frozen layers, which change only if the user's code assigns them.
    """
    return [
        variable
        for layer in of_all_depths(model)
        if layer.trainable or frozen
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]


def multiply_pointwise(model: keras.Model, device_type: str) -> None:
    """Makes 1x1 convolutions of few positions products of matrices, if `device_type` is "CPU".

    oneDNN rearranges the weights of a convolution three times a step. Where a replica has few positions, this takes
    longer than the arithmetic: a layer of 512 x 2,048 weights on 16 positions takes 0.28 of the time as a product
    (docs/speed.md). `convolution_op` is replaced on the objects.
    """
    for layer in of_all_depths(model) if device_type == "CPU" else ():
        # Not those whose class computes something else.
        if getattr(type(layer), "convolution_op", None) is not keras.layers.Conv2D.convolution_op:
            continue
        if layer.kernel_size == (1, 1) and layer.groups == 1 and layer.data_format == "channels_last":
            patching.put(layer, "convolution_op", functools.partial(_convolve, layer))


def _convolve(layer: keras.layers.Conv2D, inputs: Any, kernel: Any) -> tf.Tensor:
    """Returns [batch, height, width, filters], from inputs [batch, height, width, channels]."""
    down, right = layer.strides
    chosen, weights = keras.ops.convert_to_tensor(inputs), keras.ops.convert_to_tensor(kernel)
    if layer.strides != (1, 1):
        chosen = chosen[:, ::down, ::right]
    positions = chosen.shape[:-1].num_elements()
    if chosen.dtype != weights.dtype or positions is None or positions > _MOST_POSITIONS:
        return keras.layers.Conv2D.convolution_op(layer, inputs, kernel)
    channels, filters = weights.shape[2:]
    product = tf.matmul(tf.reshape(chosen, [positions, channels]), tf.reshape(weights, [channels, filters]))
    return tf.reshape(product, [*chosen.shape[:-1], filters])
