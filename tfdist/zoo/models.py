"""Image classifiers: a multilayer perceptron, small convolutional networks, CIFAR ResNets, and Keras' applications.

Each returns logits [n, num_classes] in float32, also in mixed precision. The initial weights are He-normal
(arXiv 1502.01852), except in `application`. All are plain Keras: a saved model loads and predicts without tfdist.
Layers have explicit names, so that the names of weights do not depend on other models built in the process. Arguments
of several of them:

    num_classes    the number of logits
    input_shape    the shape of one example; (height, width, channels) of an image
    normalization  "batch", or "sync_batch" for statistics over all replicas
    group_size     examples per group of the statistics, or None; see `normalization.batch_normalization`
    l2             adds l2 x the sum of squares of all kernels to the loss; the gradient's weight decay is twice that

Invalid arguments raise ValueError.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfdist.config import specs
from tfdist.zoo import normalization as normalization_lib

NORMALIZATIONS = ("batch", "sync_batch")


def mlp(
    num_classes: int = 10, input_shape: Sequence[int] = (28, 28, 1), hidden: Sequence[int] = (128,), l2: float = 0.0
) -> keras.Model:
    """Returns a multilayer perceptron: flatten, a ReLU layer for each width in `hidden`, logits."""
    inputs = outputs = keras.Input(tuple(input_shape), name="image")
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    for i, width in enumerate(hidden, 1):
        outputs = keras.layers.Dense(width, activation="relu", name=f"dense{i}", **_kernel(l2))(outputs)
    return keras.Model(inputs, _logits(outputs, num_classes, l2), name="mlp")


def mnist_cnn(num_classes: int = 10, input_shape: Sequence[int] = (28, 28, 1), l2: float = 0.0) -> keras.Model:
    """Returns the two-convolution network: 5x5x32, pool, 5x5x64, pool, logits."""
    inputs = outputs = keras.Input(_image_shape(input_shape), name="image")
    for i, filters in enumerate((32, 64), 1):
        outputs = keras.layers.Conv2D(filters, 5, padding="same", activation="relu", name=f"conv{i}", **_kernel(l2))(
            outputs
        )
        outputs = keras.layers.MaxPooling2D(2, name=f"pool{i}")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    return keras.Model(inputs, _logits(outputs, num_classes, l2), name="mnist_cnn")


def small_cnn(
    num_classes: int = 10,
    input_shape: Sequence[int] = (8, 8, 1),
    filters: Sequence[int] = (32, 64),
    normalization: str = "batch",
    group_size: int | None = None,
    l2: float = 0.0,
) -> keras.Model:
    """Returns a network for tiny images, from 2x2: 3x3 convolutions with normalisation and ReLU, one pool, logits."""
    statistics = _statistics(normalization, group_size)
    inputs = outputs = keras.Input(_image_shape(input_shape), name="image")
    for i, channels in enumerate(filters, 1):
        outputs = _convolve_and_normalise(outputs, channels, 1, f"block{i}", l2, statistics)
        outputs = keras.layers.ReLU(name=f"block{i}_relu")(outputs)
    outputs = keras.layers.MaxPooling2D(2, name="pool")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    return keras.Model(inputs, _logits(outputs, num_classes, l2), name="small_cnn")


def cifar_resnet(
    depth: int = 20,
    num_classes: int = 10,
    input_shape: Sequence[int] = (32, 32, 3),
    width: int = 16,
    normalization: str = "batch",
    group_size: int | None = None,
    l2: float = 0.0,
) -> keras.Model:
    """Returns the residual network for small images of He et al. 2015, section 4.2 (arXiv 1512.03385).

    A 3x3 convolution; three stages of (depth - 2) / 6 blocks of two 3x3 convolutions, with `width`, 2 x `width` and
    4 x `width` filters, where stages 2 and 3 halve the image; global average pooling; logits. Shortcuts are option A of
    the paper: if the size changes, every second pixel, with zeros for the new channels, without parameters.

    Args:
        depth: 6n + 2: 20, 32, 44, 56, 110, ...
        width: filters of the first stage; 16 in the paper.
        l2: the paper's weight decay of 1e-4 is l2=5e-5.
    """
    if depth < 8 or depth % 6 != 2:
        near = max(8, round((depth - 2) / 6) * 6 + 2)
        raise ValueError(f"depth must be 6n + 2, such as 20, 32 or 56. The nearest is {near}. Received: {depth}")
    statistics = _statistics(normalization, group_size)

    def convolution(inputs, filters, stride, name):
        return _convolve_and_normalise(inputs, filters, stride, name, l2, statistics)

    def block(inputs, filters, stride, name):
        outputs = convolution(inputs, filters, stride, f"{name}_1")
        outputs = keras.layers.ReLU(name=f"{name}_1_relu")(outputs)
        outputs = convolution(outputs, filters, 1, f"{name}_2")
        if stride > 1:
            inputs = keras.layers.MaxPooling2D(1, stride, padding="same", name=f"{name}_subsample")(inputs)
            new_channels = filters - inputs.shape[-1]
            inputs = keras.ops.pad(inputs, [[0, 0], [0, 0], [0, 0], [0, new_channels]])
        outputs = keras.layers.Add(name=f"{name}_add")([inputs, outputs])
        return keras.layers.ReLU(name=f"{name}_relu")(outputs)

    inputs = keras.Input(_image_shape(input_shape), name="image")
    outputs = keras.layers.ReLU(name="stem_relu")(convolution(inputs, width, 1, "stem"))
    for stage in range(3):
        for i in range((depth - 2) // 6):
            stride = 2 if stage > 0 and i == 0 else 1
            outputs = block(outputs, width * 2**stage, stride, f"stage{stage + 1}_block{i + 1}")
    outputs = keras.layers.GlobalAveragePooling2D(name="mean")(outputs)
    return keras.Model(inputs, _logits(outputs, num_classes, l2), name=f"cifar_resnet{depth}")


def application(
    name: str,
    num_classes: int,
    input_shape: Sequence[int],
    normalization: str = "batch",
    group_size: int | None = None,
    **arguments: Any,
) -> keras.Model:
    """Returns a model of `keras.applications` with random initial weights and logits as outputs.

    Several of them (EfficientNet, ConvNeXt, MobileNetV3) scale their inputs internally and expect pixels 0 .. 255; see
    Keras' documentation. The initial weights are those of Keras.

    Args:
        name: a function of `keras.applications`: "ResNet50V2", "MobileNetV2", ...
        input_shape: see Keras' documentation for the minimum size.
        **arguments: other arguments of the application, such as `alpha` of MobileNetV2.
    """
    fixed = {"weights": None, "classes": num_classes, "classifier_activation": None, "include_top": True}
    model = find_application(name)(input_shape=_image_shape(input_shape), **fixed, **arguments)
    normalization_lib.fuse(model, **_statistics(normalization, group_size))
    if model.output.dtype == "float32":
        return model
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(model.output)
    return keras.Model(model.input, logits, name=model.name)


def find_application(name: str) -> Callable[..., keras.Model]:
    """Returns the function of `keras.applications` of this name; raises ValueError, with the nearest name, if none."""
    names = [n for n, value in vars(keras.applications).items() if inspect.isfunction(value)]
    if name not in names:
        hint = specs.nearest(name, names)
        raise ValueError(f"keras.applications has no {name!r}.{hint} All: {', '.join(sorted(names))}")
    return getattr(keras.applications, name)


def _kernel(l2: float) -> dict[str, Any]:
    return {"kernel_initializer": "he_normal", "kernel_regularizer": keras.regularizers.L2(l2) if l2 else None}


def _logits(inputs, num_classes: int, l2: float):
    return keras.layers.Dense(num_classes, dtype="float32", name="logits", **_kernel(l2))(inputs)


def _image_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (height, width, channels). Received: {tuple(shape)}")
    return tuple(shape)


def _convolve_and_normalise(inputs, filters, stride, name, l2, statistics):
    convolution = keras.layers.Conv2D(
        filters, 3, stride, padding="same", use_bias=False, name=f"{name}_conv", **_kernel(l2)
    )
    arguments = {"momentum": 0.9, "epsilon": 1e-5, "name": f"{name}_norm"}
    return normalization_lib.batch_normalization(**arguments, **statistics)(convolution(inputs))


def _statistics(normalization: str, group_size: int | None) -> dict[str, Any]:
    if normalization not in NORMALIZATIONS:
        raise ValueError(f"normalization must be one of {', '.join(NORMALIZATIONS)}. Received: {normalization!r}")
    return {"synchronized": normalization == "sync_batch", "group_size": group_size}
