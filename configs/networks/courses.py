"""The networks of four public courses as their pages print them, and how those pages prepare images.

Weights start as Keras starts them (Glorot-uniform, zero biases), and the last layer is a softmax: train them with
`tfdist.zoo.objectives:keras_loss`. The configs are in `configs/courses/`.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.configs.networks import classic
from tfdist.zoo import models
from tfdist.zoo.prepare import Batch


def mlp(classes: int = 10, input_shape: Sequence[int] = (28, 28, 1)) -> keras.Model:
    """Returns the perceptron of the SCtrain course: flatten, dense 128 with ReLU, softmax; 101,770 parameters."""
    return keras.Sequential(
        [
            keras.Input(tuple(input_shape), name="image"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(128, activation="relu", name="dense"),
            keras.layers.Dense(classes, activation="softmax", name="probabilities"),
        ],
        name="mlp",
    )


def mnist_cnn(classes: int = 10, input_shape: Sequence[int] = (28, 28, 1)) -> keras.Model:
    """Returns the MNIST network of the BSC course: 62,346 parameters.

    Convolution 5x5x32 and 5x5x64 without padding, each with ReLU and a pool of 2x2, then a softmax.
    """
    return keras.Sequential(
        [
            keras.Input(tuple(input_shape), name="image"),
            keras.layers.Conv2D(32, (5, 5), activation="relu", name="conv1"),
            keras.layers.MaxPooling2D((2, 2), name="pool1"),
            keras.layers.Conv2D(64, (5, 5), activation="relu", name="conv2"),
            keras.layers.MaxPooling2D((2, 2), name="pool2"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(classes, activation="softmax", name="probabilities"),
        ],
        name="mnist_cnn",
    )


def alexnet(classes: int = 5, input_shape: Sequence[int] = (256, 256, 3), form: str = "sequential") -> keras.Model:
    """Returns AlexNet as the SCtrain course prints it, with four convolutions, and zero padding after each.

    With ten classes it has 70,086,218 parameters at 256x256 pixels and 56,454,730 at 224x224.

    Args:
        classes: outputs of the softmax; 5 on the page.
        input_shape: (height, width, channels).
        form: "sequential" or "functional": the Keras API used. Layers, weights and results are the same.

    Raises:
        ValueError: `form` is unknown.
    """
    return classic.in_form(form, input_shape, _alexnet_layers(classes), name="alexnet")


def _alexnet_layers(classes: int) -> list[keras.layers.Layer]:
    layers: list[keras.layers.Layer] = []
    # Filters, size, stride, padding after the convolution, pool.
    for i, (filters, size, stride, padding, pool) in enumerate(
        ((64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, True)), 1
    ):
        layers += [
            keras.layers.Conv2D(filters, size, stride, "valid", name=f"conv{i}"),
            keras.layers.ZeroPadding2D(padding, name=f"pad{i}"),
            keras.layers.ReLU(name=f"relu{i}"),
        ]
        if pool:
            layers.append(keras.layers.MaxPooling2D(3, 2, name=f"pool{i}"))
    layers.append(keras.layers.Flatten(name="flatten"))
    for i in (5, 6):
        layers += [
            keras.layers.Dropout(0.5, name=f"dropout{i}"),
            keras.layers.Dense(4096, name=f"dense{i}"),
            keras.layers.ReLU(name=f"relu{i}"),
        ]
    return [*layers, keras.layers.Dense(classes, activation="softmax", name="probabilities")]


def application(
    name: str,
    classes: int,
    input_shape: Sequence[int],
    activation: str | None = "softmax",
    weights: str | None = None,
    **arguments: Any,
) -> keras.Model:
    """Returns a model of `keras.applications`, unchanged.

    Args:
        name: a function of `keras.applications`: "ResNet50V2", "InceptionV3", ...
        classes: the number of outputs.
        input_shape: (height, width, channels).
        activation: of the last layer; "softmax", or None for logits.
        weights: None: random; a file of weights; "imagenet": downloaded by Keras, for the classes of ImageNet only.
        **arguments: other arguments of the application.

    Raises:
        ValueError: there is no such application.
    """
    return models.find_application(name)(
        weights=weights,
        input_shape=tuple(input_shape),
        classes=classes,
        classifier_activation=activation,
        **arguments,
    )


def images(
    batch: Batch,
    seeds: tf.Tensor,
    *,
    training: bool,
    resize: Sequence[int] | None = None,
    scale: float = 1 / 255,
    colours: bool = False,
) -> Batch:
    """Resizes and scales images as the pages do: `tf.image.resize`, then a factor, without rounding to bytes.

    Args:
        batch: "image" of any real dtype [n, h, w, c], or of encoded images, string [n], which are decoded first; other
            entries are unchanged.
        seeds: not used: there is no augmentation.
        training: not used.
        resize: (height, width), bilinear; required for encoded images.
        scale: factor for the pixels: 1/255, or 1 for 0 .. 255.
        colours: grey images get three equal channels.

    Returns:
        The batch with "image" float32 [n, height, width, c].

    Raises:
        ValueError: the images are encoded and `resize` is None.
    """
    del seeds, training
    pixels = batch["image"]
    if pixels.dtype == tf.string:
        if resize is None:
            raise ValueError("courses:images needs resize=(height, width) for encoded images. Received: None")
        pixels = tf.map_fn(
            lambda content: tf.image.resize(tf.io.decode_jpeg(content, channels=3), tuple(resize)),
            pixels,
            fn_output_signature=tf.TensorSpec([*resize, 3], tf.float32),
        )
    elif resize is not None:
        pixels = tf.image.resize(pixels, tuple(resize))
    pixels = tf.cast(pixels, tf.float32) * scale
    return {**batch, "image": tf.image.grayscale_to_rgb(pixels) if colours else pixels}
