"""Models for courses: AlexNet for images of 256x256 pixels, and the line y = m x + n with its points and objective."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.zoo import objectives, stateless_random
from tfdist.zoo.normalization import batch_normalization
from tfdist.zoo.sources.synthetic import Computed, of_split

FORMS = ("functional", "sequential")


def alexnet(
    num_classes: int = 10,
    input_shape: Sequence[int] = (256, 256, 3),
    form: str = "functional",
    dropout: float = 0.5,
    group_size: int | None = None,
) -> keras.Model:
    """Returns AlexNet (Krizhevsky et al. 2012) without its two-GPU split, with batch normalisation.

    Five convolutions of 11x11x96 with stride 4, 5x5x256, 3x3x384, 3x3x384 and 3x3x256, each followed by batch
    normalisation; pools of 3x3 with stride 2 after the first, second and last; two dense layers of 4096 with dropout;
    logits, float32 [n, num_classes].

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels), at least 67 x 67.
        form: "functional" or "sequential": the Keras API used. Layers, weights and results are the same.
        dropout: the dropout rate after both dense layers.
        group_size: examples per group of the statistics, or None; see `normalization.batch_normalization`.

    Raises:
        ValueError: `form` is unknown, or the images are too small.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 67:
        raise ValueError(
            f"alexnet: input_shape must be (height, width, channels), at least 67x67. Received: {tuple(input_shape)}"
        )
    return in_form(form, input_shape, _alexnet_layers(num_classes, dropout, group_size), name="alexnet")


def in_form(form: str, input_shape: Sequence[int], layers: Sequence[keras.layers.Layer], *, name: str) -> keras.Model:
    """Returns a model of images of `input_shape`, one layer after another, by the Keras API `form`.

    Raises:
        ValueError: `form` is unknown.
    """
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}. Received: {form!r}")
    inputs = keras.Input(tuple(input_shape), name="image")
    if form == "sequential":
        return keras.Sequential([inputs, *layers], name=name)
    outputs = inputs
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs, name=name)


def _alexnet_layers(num_classes: int, dropout: float, group_size: int | None) -> list[keras.layers.Layer]:
    he = {"kernel_initializer": "he_normal"}
    layers: list[keras.layers.Layer] = []
    convolutions = ((96, 11, 4, "valid"), (256, 5, 1, "same"), (384, 3, 1, "same"), (384, 3, 1, "same"))
    for i, (filters, size, stride, padding) in enumerate((*convolutions, (256, 3, 1, "same")), 1):
        layers.append(
            keras.layers.Conv2D(filters, size, stride, padding, activation="relu", name=f"conv{i}", **he),
        )
        layers.append(batch_normalization(name=f"norm{i}", synchronized=False, group_size=group_size))
        if i in (1, 2, 5):
            layers.append(keras.layers.MaxPooling2D(3, 2, name=f"pool{i}"))
    layers.append(keras.layers.Flatten(name="flatten"))
    for i in (6, 7):
        layers.append(keras.layers.Dense(4096, activation="relu", name=f"dense{i}", **he))
        layers.append(keras.layers.Dropout(dropout, name=f"dropout{i}"))
    return [*layers, keras.layers.Dense(num_classes, dtype="float32", name="logits", **he)]


def line(m: float = 0.0, n: float = 0.0) -> keras.Model:
    """Returns a model of the line y = m x + n with initial `m` and `n`; x and y are float32 [examples, 1]."""
    inputs = keras.Input((1,), name="x")
    start = {"kernel_initializer": keras.initializers.Constant(m), "bias_initializer": keras.initializers.Constant(n)}
    return keras.Model(inputs, keras.layers.Dense(1, name="line", **start)(inputs), name="line")


def line_error(model: Any, batch: Mapping[str, tf.Tensor], *, training: bool) -> dict[str, tf.Tensor]:
    """The squared error of a `line`, and its parameters: reports in each step give the trajectory.

    Returns:
        float32 [examples] each: "loss", (m x + n - y)^2; "m" and "n", the values before the step, repeated.
    """
    values = objectives.regression(model, batch, training=training, inputs="x", targets="y")
    layer = model.get_layer("line")
    m, n = (tf.reshape(tf.convert_to_tensor(variable), []) for variable in (layer.kernel, layer.bias))
    same = tf.zeros_like(values["loss"])
    return {"loss": values["loss"], "m": tf.stop_gradient(same + m), "n": tf.stop_gradient(same + n)}


def points(
    split: str,
    *,
    m: float = 2.0,
    n: float = 0.5,
    noise: float = 0.3,
    num_examples: int = 64,
    num_test_examples: int = 0,
    width: float = 1.0,
) -> Computed:
    """Points near the line y = m x + n, with x uniform in [-width, width); y differs from the line by at most `noise`.

    Returns a source of {"x": float32 [n, 1], "y": float32 [n, 1]} of the splits "train" and "test", which have no point
    in common.
    """

    def compute(ids: tf.Tensor) -> dict[str, tf.Tensor]:
        draws = 2.0 * stateless_random.uniform(tf.stack([tf.zeros_like(ids), ids], axis=1), 0, 2) - 1.0
        x = width * draws[:, :1]
        return {"x": x, "y": m * x + n + noise * draws[:, 1:]}

    return of_split(split, compute, num_examples, num_test_examples, None, f"line, y = {m:g} x + {n:g}")
