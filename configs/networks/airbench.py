"""A network, augmentation and an objective for CIFAR-10, after the public speed records (K. Jordan, arXiv 2404.00498).

Its features: a fixed first layer that whitens 2x2 patches (set from training images by `whiten`, see `config.adapt`),
convolutions initialised as the identity, normalisation without scale, and fast moving statistics. Plain Keras: a saved
model loads and predicts without tfdist.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.zoo import normalization, objectives, prepare, stateless_random

WHITENING = "whitening"


def network(
    num_classes: int = 10,
    input_shape: Sequence[int] = (32, 32, 3),
    widths: Sequence[int] = (64, 256, 256),
    group_size: int | None = None,
    activation: str = "gelu",
    momentum: float = 0.6,
    logit_scale: float = 1 / 9,
) -> keras.Model:
    """Returns the network: a whitening layer, and three blocks of two 3x3 convolutions with a pool after the first.

    Args:
        num_classes: the number of logits.
        input_shape: (height, width, channels), at least 26 x 26.
        widths: filters of the three blocks. arXiv 2404.00498: (64, 256, 256) for 94 %, (128, 384, 384) for 95 %.
        group_size: examples per group of the statistics, or None; see `normalization.batch_normalization`.
        activation: Keras' name of the activation; GELU in the paper.
        momentum: decay of the moving statistics per step.
        logit_scale: factor of the last layer's outputs.

    Returns:
        A model from images [n, height, width, channels] to logits, float32 [n, num_classes].

    Raises:
        ValueError: `input_shape` is not (height, width, channels), or too small.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 26:
        raise ValueError(
            f"input_shape must be (height, width, channels), at least 26 x 26. Received: {tuple(input_shape)}"
        )

    def initializer():  # Smaller than He's: normalised layers learn faster with smaller weights.
        return keras.initializers.VarianceScaling(1 / 3, mode="fan_in", distribution="uniform")

    def convolution(inputs, filters, name, pool):
        outputs = keras.layers.Conv2D(
            filters, 3, padding="same", use_bias=False, kernel_initializer=initializer(), name=f"{name}_conv"
        )(inputs)
        if pool:
            outputs = keras.layers.MaxPooling2D(2, name=f"{name}_pool")(outputs)
        norm = normalization.batch_normalization(
            group_size=group_size, momentum=momentum, epsilon=1e-12, scale=False, name=f"{name}_norm"
        )
        return keras.layers.Activation(activation, name=f"{name}_{activation}")(norm(outputs))

    inputs = keras.Input(tuple(input_shape), name="image")
    outputs = keras.layers.Conv2D(2 * 4 * input_shape[-1], 2, name=WHITENING)(inputs)
    outputs = keras.layers.Activation(activation, name=f"{WHITENING}_{activation}")(outputs)
    for block, filters in enumerate(widths, 1):
        outputs = convolution(outputs, filters, f"block{block}_1", pool=True)
        outputs = convolution(outputs, filters, f"block{block}_2", pool=False)
    outputs = keras.layers.MaxPooling2D(3, name="pool")(outputs)
    outputs = keras.layers.Flatten(name="flatten")(outputs)
    outputs = keras.layers.Dense(num_classes, use_bias=False, kernel_initializer=initializer(), name="head")(outputs)
    logits = keras.layers.Rescaling(logit_scale, dtype="float32", name="logits")(outputs)
    model = keras.Model(inputs, logits, name="airbench")
    # Only the kernel is frozen; the bias is trained.
    model.get_layer(WHITENING).kernel.trainable = False
    _initialise_convolutions(model)
    return model


def _initialise_convolutions(model: keras.Model) -> None:
    for layer in model.layers:
        if isinstance(layer, keras.layers.Conv2D) and layer.name != WHITENING:
            layer.kernel.assign(_with_identity(keras.ops.convert_to_numpy(layer.kernel)))


def _with_identity(kernel: np.ndarray) -> np.ndarray:
    """Returns `kernel` [3, 3, inputs, filters] with the first filters set to the identity of the inputs."""
    kernel = kernel.copy()
    count = min(kernel.shape[2:])
    kernel[..., :count] = 0.0
    kernel[1, 1, range(count), range(count)] = 1.0
    return kernel


def crop_and_flip(batch: prepare.Batch, seeds: tf.Tensor, *, training: bool, pad: int) -> prepare.Batch:
    """Pads images by reflection, crops at random, and mirrors half of them, the other half in the next epoch.

    In evaluation the images are unchanged (arXiv 2404.00498, section 3.6).

    Args:
        batch: "image" [n, h, w, c]; other entries are unchanged.
        seeds: int64 [n, 2]; the first column is (seed << 32) | epoch, see `tfdist.data.order.seeds`.
        training: False: no augmentation.
        pad: pixels of the reflection on every side, fewer than the images have.
    """
    if not training:
        return batch
    images = batch["image"]
    padded = tf.pad(images, [[0, 0], [pad, pad], [pad, pad], [0, 0]], mode="REFLECT")
    cropped = prepare.random_crop(padded, seeds, size=tuple(images.shape[1:3]))
    epoch = tf.bitwise.bitwise_and(seeds[:, 0], 0xFFFFFFFF)
    of_first_epoch = tf.stack([seeds[:, 0] - epoch, seeds[:, 1]], axis=1)
    mirrored = tf.equal(stateless_random.uniform(of_first_epoch, 0, 3)[:, 2] < 0.5, epoch % 2 == 0)
    return {**batch, "image": tf.where(mirrored[:, None, None, None], tf.reverse(cropped, [2]), cropped)}


def whiten(
    model: keras.Model,
    read: Callable[[int], dict[str, tf.Tensor]],
    *,
    num_examples: int = 5000,
    epsilon: float = 5e-4,
    inputs: str = "image",
) -> None:
    """Sets the first layer of `network` to map 2x2 patches to uncorrelated values of variance 1.

    For `config.adapt`. The filters are the eigenvectors of the patches' covariance, each divided by the square root of
    its eigenvalue, and their negatives (arXiv 2404.00498, section 3.2). They are not trained; the layer's bias is.

    Args:
        model: created by `network`.
        read: read(n) returns the first n training examples, prepared without augmentation.
        num_examples: number of images for the covariance.
        epsilon: added to the eigenvalues.
        inputs: the key of the images.

    Raises:
        ValueError: the model has no such layer.
    """
    layers = [layer for layer in model.layers if layer.name == WHITENING]
    if not layers:
        raise ValueError(
            f"config.adapt: whiten needs a model with a layer {WHITENING!r}, such as airbench:network. "
            f"Received: {model.name!r}"
        )
    images = read(num_examples)[inputs].numpy().astype(np.float64)
    patches = np.lib.stride_tricks.sliding_window_view(images, (2, 2), axis=(1, 2))
    # [n, h, w, c, 2, 2] -> rows in the order of a kernel's first three axes.
    patches = patches.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 4 * images.shape[-1])
    values, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
    # The sign of an eigenvector is arbitrary: fix it, so that all linear algebra libraries give the same filters.
    vectors *= np.sign(vectors[np.abs(vectors).argmax(0), range(vectors.shape[1])])
    filters = (vectors / np.sqrt(values + epsilon))[:, ::-1]
    kernel = np.concatenate([filters, -filters], axis=1).reshape(layers[0].kernel.shape)
    layers[0].kernel.assign(kernel.astype(np.float32))


def classification(
    model: Callable[..., tf.Tensor],
    batch: dict[str, tf.Tensor],
    *,
    training: bool,
    label_smoothing: float = 0.0,
    mirror: bool = False,
    shift: int = 0,
) -> dict[str, tf.Tensor]:
    """As `tfdist.zoo.objectives:classification`; evaluation uses the mean of the logits of several views.

    Args:
        mirror: average the logits of each image and its mirror image.
        shift: average the logits of the image (weight 1/2) and of the image shifted by this many pixels to the upper
            left and to the lower right (1/4 each), with reflected borders (arXiv 2404.00498, section 3.5).
    """

    def of_views(images: tf.Tensor, training: bool) -> tf.Tensor:
        return tf.add_n([weight * model(view, training=training) for view, weight in _views(images, mirror, shift)])

    several = not training and (mirror or shift)
    return objectives.classification(
        of_views if several else model, batch, training=training, label_smoothing=label_smoothing
    )


def _views(images: tf.Tensor, mirror: bool, shift: int) -> list[tuple[tf.Tensor, float]]:
    views = [(images, 1.0)]
    if shift:
        height, width = images.shape[1:3]
        padded = tf.pad(images, [[0, 0], [shift, shift], [shift, shift], [0, 0]], "REFLECT")
        moved = [padded[:, at : at + height, at : at + width] for at in (0, 2 * shift)]
        views = [(images, 0.5), *((view, 0.25) for view in moved)]
    if mirror:
        views = [(view, weight / 2) for view, weight in views]
        views += [(tf.reverse(view, axis=[2]), weight) for view, weight in views]
    return views
