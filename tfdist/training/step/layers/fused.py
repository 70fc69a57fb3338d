"""Layers that take fewer passes over memory on CPUs: docs/speed.md, "Fused layers".

XLA compiles activations and layer normalisation; batch normalisation has a kernel of TensorFlow.
"""

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf

from tfdist.config import patching, user_code
from tfdist.training.step.layers import model_layers, normalization

# Minimum number of elements: each shape is compiled once, which takes 0.2 to 0.5 s.
_MIN_ELEMENTS = 2**16
# XLA was tried on no other system.
_COMPILES = sys.platform == "linux"
# Activations that TensorFlow computes with several operations.
_ACTIVATIONS = [getattr(keras.activations, name) for name in ("gelu", "silu", "hard_silu", "mish")]


class _Thread(threading.local):
    # Whether the new moving statistics need no gradients.
    constant_statistics = False


_thread = _Thread()


def constant_statistics() -> AbstractContextManager[None]:
    """Declares that in the block, the moving statistics that a `stateless_call` returns need no gradients."""
    return patching.set_in_block(_thread, constant_statistics=True)


def fuse(model: keras.Model) -> None:
    """Fuses activations and normalisation of `model`.

    `activation` and `call` are replaced on the objects. Outputs and gradients are those of Keras, up to rounding.
    XLA does not compile for small tensors, or for those without a static shape when a step is traced: Keras computes
    them.
    """
    # In forward mode, TensorFlow fails for XLA's functions, and is wrong for custom gradients and for the kernel.
    patching.replace_until_end(tf.autodiff.ForwardAccumulator, "__init__", _refuse_forward_mode)
    for layer in model_layers.all_layers(model):
        # A recurrent layer's `activation` is a property that returns its cell's.
        if any(vars(layer).get("activation") is one for one in _ACTIVATIONS):
            patching.replace_until_end(layer, "activation", _compile_activation(layer.activation))
        if "call" in vars(layer):  # Already replaced.
            continue
        # Not subclasses, which may compute something else. Keras 3.12 has no renorm.
        if type(layer) is keras.layers.BatchNormalization and not getattr(layer, "renorm", False):
            patching.replace_until_end(layer, "call", functools.partial(_normalise_batch, layer))
        if type(layer) is keras.layers.LayerNormalization and not layer.rms_scaling:
            patching.replace_until_end(layer, "call", functools.partial(_normalise_rows, layer))


def _refuse_forward_mode(*args: Any, **keywords: Any) -> None:
    raise ValueError(
        "tf.autodiff.ForwardAccumulator cannot differentiate layers in a run on CPUs, at "
        f"{user_code.current_line()}. Use nested tf.GradientTape."
    )


def _normalise_batch(
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    if mask is not None or not (training and layer.trainable) or not _has_kernel(layer, inputs):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    channels, nothing = inputs.shape[-1], tf.zeros([0])
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs if inputs.shape.rank == 4 else tf.reshape(inputs, [-1, 1, 1, channels]),
        scale=tf.cast(layer.gamma, tf.float32) if layer.scale else tf.ones([channels]),
        offset=tf.cast(layer.beta, tf.float32) if layer.center else tf.zeros([channels]),
        mean=nothing,
        variance=nothing,
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The kernel returns the unbiased variance.
    count = tf.cast(tf.size(inputs) // channels, tf.float32)
    normalization.update_moving_statistics(layer, mean, variance * (tf.maximum(count - 1.0, 1.0) / count))
    if inputs.shape.rank != 4:
        outputs = tf.ensure_shape(tf.reshape(outputs, tf.shape(inputs)), inputs.shape)
    return tf.cast(outputs, layer.compute_dtype)


def _has_kernel(layer: keras.layers.BatchNormalization, inputs: Any) -> bool:
    # A user's `call` may also pass variables, ragged tensors and arrays: the kernel does not take them.
    if not isinstance(inputs, tf.Tensor) or inputs.dtype not in (tf.float32, tf.bfloat16, tf.float16):
        return False
    # In `stateless_call` the new statistics are results, for which the kernel has no gradient.
    stateless = isinstance(layer.moving_mean.value, tf.Tensor) and not _thread.constant_statistics
    channels_last = layer.axis in (-1, inputs.shape.rank - 1) and inputs.shape[-1] is not None
    return channels_last and not stateless


def _is_compiled(x: Any) -> bool:
    if not (_COMPILES and isinstance(x, tf.Tensor) and x.dtype.is_floating):
        return False
    elements = x.shape.num_elements()
    return elements is not None and elements >= _MIN_ELEMENTS


def _widen(x: tf.Tensor) -> tf.Tensor:
    """Casts half precision to float32: otherwise XLA would round after each operation."""
    return x if x.dtype == tf.float64 else tf.cast(x, tf.float32)


def _narrow(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return _round_to_bfloat16(x) if dtype == tf.bfloat16 else tf.cast(x, dtype)


@tf.custom_gradient
def _round_to_bfloat16(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Casts float32 to bfloat16 with integer operations: XLA's cast takes a third of the time of an activation.

    Adds 0x7FFF to the bits, plus 1 if the last bit that is kept is odd: rounds to nearest, ties to even. A NaN whose
    lower 16 bits are zero stays NaN; computations on bfloat16 make only such NaNs.
    """
    bits = tf.bitcast(x, tf.uint32)
    odd = tf.bitwise.bitwise_and(tf.bitwise.right_shift(bits, 16), 1)
    upper = tf.bitwise.right_shift(bits + 0x7FFF + odd, 16)
    return tf.bitcast(tf.cast(upper, tf.uint16), tf.bfloat16), lambda of_outputs: tf.cast(of_outputs, x.dtype)


@functools.cache
def _compile_activation(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def forward(x: tf.Tensor) -> tf.Tensor:
        return _narrow(function(_widen(x)), x.dtype)

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def backward(x: tf.Tensor, of_outputs: tf.Tensor) -> tf.Tensor:
        wide = _widen(x)
        with tf.GradientTape() as tape:
            tape.watch(wide)
            outputs = function(wide)
        return _narrow(tape.gradient(outputs, wide, _widen(of_outputs)), x.dtype)

    # `tf.identity`: the gradient of a `tf.cond` cannot pass a tensor of the branch to a function that XLA compiles.
    @tf.custom_gradient
    def compute(x: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return forward(x), lambda of_outputs: backward(tf.identity(x), of_outputs)

    @functools.wraps(function)  # Keras saves a layer with the name of its activation.
    def call(x: Any, *args: Any, **keywords: Any) -> Any:
        return compute(x) if _is_compiled(x) and not args and not keywords else function(x, *args, **keywords)

    call.__module__ = "keras.activations"  # Where Keras 3.16 finds the function of this name when it loads the layer.
    return call


def _normalise_rows(layer: keras.layers.LayerNormalization, inputs: Any) -> tf.Tensor:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if not _is_compiled(inputs) or inputs.dtype == tf.float64 or axes not in ([-1], [inputs.shape.rank - 1]):
        return type(layer).call(layer, inputs)
    width = inputs.shape[-1:]
    scale = tf.cast(layer.gamma, tf.float32) if layer.scale else tf.ones(width)
    offset = tf.cast(layer.beta, tf.float32) if layer.center else tf.zeros(width)
    epsilon = keras.backend.epsilon() if layer.epsilon is None else float(layer.epsilon)
    # Cast outside of XLA, because a cast in XLA takes longer.
    outputs = normalise(tf.cast(inputs, tf.float32), scale, offset, epsilon)
    return tf.cast(outputs, layer.compute_dtype)


def normalise(inputs: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Returns layer normalisation over the last axis (arXiv 1607.06450).

    Args:
        inputs: float32 [..., width], of a static shape.
        scale: float32 [width], as `offset`.
        epsilon: is added to the variance.
    """

    @tf.custom_gradient
    def compute(inputs: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tuple[tf.Tensor, Any]:
        def gradients(of_outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            return _gradients(tf.identity(inputs), tf.identity(scale), epsilon, of_outputs)

        return _normalise(inputs, scale, offset, epsilon), gradients

    return compute(inputs, scale, offset)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _normalise(inputs: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor, epsilon: float) -> tf.Tensor:
    centred, inverse_deviation = _standardise(inputs, epsilon)
    return tf.reshape(centred * inverse_deviation * scale + offset, inputs.shape)


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _gradients(
    inputs: tf.Tensor, scale: tf.Tensor, epsilon: float, of_outputs: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the gradients of the inputs, of the scale and of the offset."""
    centred, inverse_deviation = _standardise(inputs, epsilon)
    rows = centred * inverse_deviation
    errors = tf.reshape(of_outputs, rows.shape)
    scaled = errors * scale
    of_rows = inverse_deviation * (scaled - _mean(scaled) - rows * _mean(scaled * rows))
    return tf.reshape(of_rows, inputs.shape), tf.reduce_sum(errors * rows, 0), tf.reduce_sum(errors, 0)


def _standardise(inputs: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the inputs less their means, [rows, width], and the reciprocals of their deviations, [rows, 1]."""
    rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
    centred = rows - _mean(rows)
    return centred, tf.math.rsqrt(_mean(tf.square(centred)) + epsilon)


def _mean(rows: tf.Tensor) -> tf.Tensor:
    """Returns [rows, 1] by a matrix product: XLA would add the elements of a row one after another."""
    width = rows.shape[1]
    return tf.matmul(rows, tf.fill([width, 1], 1.0 / width))
