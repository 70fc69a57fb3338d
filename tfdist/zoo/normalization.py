"""Batch normalisation with TensorFlow's fused kernel, and in groups of a fixed size.

Keras 3 computes batch normalisation in training mode from a dozen elementary operations. The layers made here are
`keras.layers.BatchNormalization` objects whose call, in training mode alone, goes through `FusedBatchNormV3`: a
ResNet-20 step takes 0.83 times as long in float32 and 0.69 times in bfloat16 (batch 64, one CPU core). The numbers
are Keras' own up to rounding, and so are configuration, weights and inference: a saved model loads with Keras alone.
What a save does not keep is `group_size`, which matters to training only: build the model anew to train it further.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

FUSED_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


def batch_normalization(
    *, group_size: int | None = None, synchronized: bool = False, **keras_arguments: Any
) -> keras.layers.BatchNormalization:
    """Returns a Keras batch normalisation layer that trains faster, and in groups where asked to.

    Args:
        group_size: None: a replica's statistics are taken over all examples it is called with. A number: over each
            group of so many consecutive examples by itself ("ghost" batch normalisation, Hoffer et al., arXiv
            1705.08741), and the moving statistics follow the mean over the groups of each group's mean and (biased)
            variance. N replicas then compute what one does, as long as `group_size` divides each replica's share.
        synchronized: take the statistics over all replicas, as Keras does it: exact, with three collectives a layer.
        **keras_arguments: the other arguments of `keras.layers.BatchNormalization`.

    Returns:
        The layer. Keras' own computation serves where the fused kernel cannot: synchronised or masked, with `renorm`,
        in float64, for inputs that are not of rank 4 with channels last.

    Raises:
        ValueError: `group_size` is not positive, or does not go with the other arguments. When the layer is called
            for training: `group_size` does not divide the number of examples (an `InvalidArgumentError` when the
            step runs, where the number is not known before), a mask is given, or channels are not last.
    """
    return _override_call(keras.layers.BatchNormalization(synchronized=synchronized, **keras_arguments), group_size)


def fuse(model: keras.Model, *, group_size: int | None = None, synchronized: bool = False) -> keras.Model:
    """Gives every batch normalisation layer of `model` the call described at `batch_normalization`.

    For models made elsewhere, such as those of `keras.applications`. Subclasses of Keras' layer are left alone.

    Args:
        model: any Keras model; changed in place. Models nested in it are included.
        group_size: as in `batch_normalization`.
        synchronized: True makes every layer synchronised; False leaves each as it is.

    Returns:
        `model`.

    Raises:
        ValueError: as `batch_normalization`.
    """
    for layer in model._flatten_layers():
        if type(layer) is keras.layers.BatchNormalization:
            layer.synchronized = layer.synchronized or synchronized
            _override_call(layer, group_size)
    return model


def _override_call(layer: keras.layers.BatchNormalization, group_size: int | None) -> keras.layers.BatchNormalization:
    if group_size is not None:
        if type(group_size) is not int or group_size < 1:
            raise ValueError(f"group_size must be a positive number of examples or None. Received: {group_size!r}")
        for name in ("synchronized", "renorm"):
            if getattr(layer, name):
                raise ValueError(
                    f"group_size={group_size} and {name}=True exclude each other: groups have statistics of their "
                    f"own. Remove one (layer {layer.name!r})."
                )
    # On the object, not in a subclass: Keras writes the class into a saved model, and must find its own there.
    layer.call = functools.partial(_call, layer, group_size)
    layer.group_size = group_size  # For a step that cuts a batch into micro-batches.
    return layer


def _call(layer, group_size, inputs, training=None, mask=None):
    if not (training and layer.trainable):
        return type(layer).call(layer, inputs, training=training, mask=mask)
    channels_last = layer.axis in (-1, inputs.shape.rank - 1)
    if group_size is None:
        plain = layer.synchronized or layer.renorm or mask is not None or not channels_last
        if plain or not _fusable(inputs):
            return type(layer).call(layer, inputs, training=training, mask=mask)
        outputs, mean, variance = _normalise(layer, inputs)
    else:
        if mask is not None or not channels_last:
            raise ValueError(
                f"Layer {layer.name!r} has group_size={group_size}, which needs channels last and takes no mask. "
                f"Received: axis={layer.axis}, inputs of shape {inputs.shape}, "
                f"{'no mask' if mask is None else 'a mask'}"
            )
        outputs, mean, variance = _normalise_groups(layer, inputs, group_size)
    _update_moving_average(layer.moving_mean, mean, layer.momentum)
    _update_moving_average(layer.moving_variance, variance, layer.momentum)
    return tf.cast(outputs, layer.compute_dtype)


def _fusable(inputs: tf.Tensor) -> bool:
    return inputs.shape.rank == 4 and inputs.dtype in FUSED_DTYPES


def _statistics_dtype(inputs: tf.Tensor) -> tf.DType:
    return tf.float32 if inputs.dtype in FUSED_DTYPES else inputs.dtype


def _update_moving_average(moving, value, momentum):
    moving.assign(keras.ops.cast(moving, value.dtype) * momentum + value * (1.0 - momentum))


def _normalise(layer, inputs):
    """Returns the normalised inputs, and the mean and biased variance [channels] over all axes but the last."""
    dtype = _statistics_dtype(inputs)
    channels = inputs.shape[-1]
    scale = keras.ops.cast(layer.gamma, dtype) if layer.scale else tf.ones([channels], dtype)
    offset = keras.ops.cast(layer.beta, dtype) if layer.center else tf.zeros([channels], dtype)
    if not _fusable(inputs):
        inputs = tf.cast(inputs, dtype)
        mean, variance = tf.nn.moments(inputs, list(range(inputs.shape.rank - 1)))
        return tf.nn.batch_normalization(inputs, mean, variance, offset, scale, layer.epsilon), mean, variance
    nothing = tf.zeros([0])
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs, scale=scale, offset=offset, mean=nothing, variance=nothing, epsilon=layer.epsilon, is_training=True
    )
    # The kernel normalises with the biased variance, as Keras does, but returns the unbiased one.
    count = tf.cast(tf.size(inputs) // channels, tf.float32)
    return outputs, mean, variance * (tf.maximum(count - 1.0, 1.0) / count)


def _normalise_groups(layer, inputs, group_size):
    """As `_normalise`, for each group by itself; the statistics are means over the groups."""
    message = (
        f"group_size={group_size} of layer {layer.name!r} must divide the number of examples that a replica is called "
        "with: the global batch divided by the replicas and by the micro-batches."
    )
    batch = inputs.shape[0]
    if batch is None:
        # The reshape must wait for the check, or its own error may come first.
        with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(inputs)[0] % group_size, 0, message)]):
            count = tf.identity(tf.shape(inputs)[0])
        groups = tf.reshape(inputs, [count // group_size, group_size, *inputs.shape[1:]])
        dtype = _statistics_dtype(inputs)
        signature = (inputs.dtype if _fusable(inputs) else dtype, dtype, dtype)
        outputs, mean, variance = tf.map_fn(
            lambda group: _normalise(layer, group), groups, fn_output_signature=signature
        )
        return tf.reshape(outputs, tf.shape(inputs)), tf.reduce_mean(mean, 0), tf.reduce_mean(variance, 0)
    if batch % group_size:
        raise ValueError(f"{message} Received: {batch} examples")
    # With one kernel for each of 4 groups a ResNet-20 step takes 1.05 times as long as with one for all; with a loop
    # over them, groups moved into the channels, or unfused moments it takes 1.16, 1.13 and 1.18 times.
    groups = [_normalise(layer, group) for group in tf.split(inputs, batch // group_size)]
    outputs, means, variances = zip(*groups, strict=True)
    return tf.concat(outputs, 0), tf.add_n(means) / len(groups), tf.add_n(variances) / len(groups)
