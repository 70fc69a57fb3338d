"""Augmentation of normalised images: mixup, which mixes pairs of examples, and cutout."""

import tensorflow as tf

from tfdist.zoo import stateless_random

# Size of the lookup table of Beta(alpha, alpha).
_BETA_TABLE_SIZE = 1 << 14


def random_mixup(
    batch: dict[str, tf.Tensor], seeds: tf.Tensor, *, alpha: float, num_classes: int | None, draw: int = 2
) -> dict[str, tf.Tensor]:
    """Mixes the images and labels of the pairs (0, 1), (2, 3), ... (Zhang et al., arXiv 1710.09412).

    A pair has one mixing weight `s` from Beta(alpha, alpha), drawn with its first row of `seeds`. Its examples (a, b)
    become (s a + (1 - s) b, s b + (1 - s) a), so every example keeps its total weight.

    Args:
        batch: "image" float32 [n, ...] and "label" int64 [n] or float32 [n, num_classes]; n is even.
        seeds: int64 [n, 2].
        alpha: above 0; 1: uniform weights; 0.2: most pairs are nearly unmixed.
        num_classes: the number of classes, for one-hot labels.
        draw: the stream of random numbers used.

    Returns:
        The batch with "label" float32 [n, num_classes]; other entries are unchanged.
    """
    if not alpha > 0:
        raise ValueError(f"prepare: mixup must be above 0, or 0 for none. Received: {alpha!r}")
    if num_classes is None:
        raise ValueError("prepare: mixup converts labels to distributions: set num_classes.")
    if "label" not in batch:
        raise ValueError(f"prepare: mixup needs a batch with labels. Received: {', '.join(batch)}.")
    images, labels = batch["image"], batch["label"]
    if labels.dtype.is_integer:
        labels = tf.one_hot(labels, num_classes, dtype=tf.float32)
    examples = tf.shape(images)[0]
    even = tf.debugging.assert_equal(
        examples % 2,
        0,
        f"prepare: mixup pairs neighbours: the per-replica batch must be even. Received: {images.shape}",
    )
    with tf.control_dependencies([even] if even is not None else []):
        partners = tf.bitwise.bitwise_xor(tf.range(examples), 1)
    table = tf.constant(stateless_random.beta_quantiles(alpha, _BETA_TABLE_SIZE), tf.float32)
    draws = tf.gather(stateless_random.uniform(seeds, draw, 1)[:, 0], tf.bitwise.bitwise_and(tf.range(examples), -2))
    mixing = tf.gather(table, tf.cast(draws * _BETA_TABLE_SIZE, tf.int32))

    def mix(values: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(values, [examples, values.shape[1:].num_elements()])
        weights = mixing[:, tf.newaxis]
        return tf.reshape(weights * flat + (1 - weights) * tf.gather(flat, partners), [-1, *values.shape[1:]])

    return {**batch, "image": mix(images), "label": mix(labels)}


def random_cutout(images: tf.Tensor, seeds: tf.Tensor, *, size: int, draw: int = 1) -> tf.Tensor:
    """Sets a square to 0, the mean of normalised images (DeVries and Taylor, arXiv 1708.04552).

    The centre is uniformly distributed over all pixels; the square is clipped at the image borders.

    Args:
        images: float [n, h, w, c].
        seeds: int64 [n, 2].
        size: the square's side in pixels.
        draw: the stream of random numbers used.
    """
    if not (isinstance(size, int) and size >= 1):
        raise ValueError(f"prepare: cutout must be an integer number of pixels. Received: {size!r}")
    height, width, _ = static_size(images)
    draws = stateless_random.uniform(seeds, draw, 2)

    def outside(centres: tf.Tensor, length: int) -> tf.Tensor:
        first = tf.cast(centres * length, tf.int32)[:, tf.newaxis] - size // 2
        pixels = tf.range(length)
        return (pixels < first) | (pixels >= first + size)

    keep = outside(draws[:, 0], height)[:, :, tf.newaxis] | outside(draws[:, 1], width)[:, tf.newaxis, :]
    return images * tf.cast(keep, images.dtype)[..., tf.newaxis]


def static_size(images: tf.Tensor) -> tuple[int, int, int]:
    """Returns height, width and channels of images [n, h, w, c].

    Raises:
        ValueError: they are not known before the images are read.
    """
    height, width, channels = images.shape[1:]
    if None in (height, width, channels):
        raise ValueError(
            f"prepare: images must have a static size. Received: {images.shape}. Set the size of the source."
        )
    return height, width, channels
