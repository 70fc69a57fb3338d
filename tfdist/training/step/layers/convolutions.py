"""Convolutions that are faster on CPUs as matrix products: docs/speed.md, "Convolutions as products"."""

import functools
import itertools
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching
from tfdist.training.step.layers import model_layers

# Maximum positions on a replica for which a 1x1 convolution is a product: with more positions, a product was slower
# for some sizes without AVX512. A processor that multiplies tiles of bfloat16 has no such limit.
_MAX_POSITIONS = 1024
# oneDNN's gradient of the weights is slow if rows of the outputs are short: its times suggest that a tile takes 32
# positions of one row. Products are faster from this number of channels and filters on.
_MAX_COLUMNS, _MIN_CHANNELS = 15, 128


def use_products(model: keras.Model, *, tiles: bool) -> None:
    """Computes convolutions as matrix products where these are faster.

    oneDNN reorders the weights of a convolution three times per step. If a replica has few positions, this takes longer
    than the arithmetic, so a 1x1 convolution becomes a product. Replaces `convolution_op` on the objects.

    Args:
        tiles: whether the processor multiplies tiles of bfloat16 (AMX). Then every 1x1 convolution in bfloat16 without
            strides becomes a product. The gradient of the weights of a larger kernel also becomes a product, if images
            are small and there are many channels. With strides, TensorFlow's strided slice takes longer than a product
            saves.
    """
    for layer in model_layers.all_layers(model):
        # Not layers whose class overrides it.
        if getattr(type(layer), "convolution_op", None) is not keras.layers.Conv2D.convolution_op:
            continue
        if layer.groups != 1 or layer.data_format != "channels_last":
            continue
        if layer.kernel_size == (1, 1):
            patching.replace_until_end(layer, "convolution_op", functools.partial(_multiply, layer, tiles))
        elif tiles and layer.strides == layer.dilation_rate == (1, 1):
            patching.replace_until_end(layer, "convolution_op", functools.partial(_convolve, layer))


def _multiply(layer: keras.layers.Conv2D, tiles: bool, inputs: Any, kernel: Any) -> tf.Tensor:
    """Returns [batch, height, width, filters], from inputs [batch, height, width, channels]; the kernel is 1x1."""
    down, right = layer.strides
    chosen, weights = tf.convert_to_tensor(inputs), tf.convert_to_tensor(kernel)
    if layer.strides != (1, 1):
        chosen = chosen[:, ::down, ::right]
    unlimited = tiles and weights.dtype == tf.bfloat16 and layer.strides == (1, 1)
    positions = chosen.shape[:-1].num_elements()
    if chosen.dtype != weights.dtype or positions is None or (positions > _MAX_POSITIONS and not unlimited):
        return keras.layers.Conv2D.convolution_op(layer, inputs, weights)
    channels, filters = weights.shape[2:]
    product = tf.matmul(tf.reshape(chosen, [positions, channels]), tf.reshape(weights, [channels, filters]))
    return tf.reshape(product, [*chosen.shape[:-1], filters])


def _convolve(layer: keras.layers.Conv2D, inputs: Any, kernel: Any) -> tf.Tensor:
    """Returns Keras' convolution; the gradient of its weights is one product per position in the kernel."""
    images, weights = tf.convert_to_tensor(inputs), tf.convert_to_tensor(kernel)
    shape = layer.compute_output_shape(images.shape)
    narrow = None not in (*shape[1:], *images.shape[1:3]) and shape[2] <= _MAX_COLUMNS
    if not narrow or min(weights.shape[2:]) < _MIN_CHANNELS or {images.dtype, weights.dtype} != {tf.bfloat16}:
        return keras.layers.Conv2D.convolution_op(layer, inputs, weights)
    padding = layer.padding.upper()

    @tf.custom_gradient
    def convolve(images: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradients(of_outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            of_images = tf.raw_ops.Conv2DBackpropInput(
                input_sizes=tf.shape(images),
                filter=weights,
                out_backprop=of_outputs,
                strides=[1, 1, 1, 1],
                padding=padding,
            )
            return of_images, gradient_of_weights(images, of_outputs, weights.shape, padding)

        return tf.nn.conv2d(images, weights, 1, padding), gradients

    return convolve(images, weights)


def gradient_of_weights(images: tf.Tensor, of_outputs: tf.Tensor, shape: tf.TensorShape, padding: str) -> tf.Tensor:
    """Returns [rows, columns, channels, filters], the gradient of the weights of a convolution without strides.

    Args:
        images: [batch, height, width, channels], and `of_outputs` [batch, height, width, filters], the gradient of the
            outputs.
        shape: of the weights.
        padding: "SAME" or "VALID", as in TensorFlow.
    """
    rows, columns, channels, filters = shape
    height, width = of_outputs.shape[1:3]
    if padding == "SAME":
        # If the number of padding pixels is odd, one more after the image than before it.
        images = tf.pad(images, [[0, 0], *([(size - 1) // 2, size // 2] for size in (rows, columns)), [0, 0]])
    errors = tf.reshape(of_outputs, [-1, filters])
    products = []
    for row, column in itertools.product(range(rows), range(columns)):
        seen = tf.reshape(images[:, row : row + height, column : column + width], [-1, channels])
        products.append(tf.matmul(seen, errors, transpose_a=True))
    return tf.reshape(tf.stack(products), shape)
