"""Preprocessing and augmentation of whole batches of images, without state.

`image` is the prepare function for a config. The other functions are its parts, which your own prepare function can
use. They are pure. The random ones take `seeds` (int64 [n, 2], one row per example). The result for an example depends
only on its row of `seeds`: it has the same bits in any batch, at any position.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.zoo import decoding
from tfdist.zoo.augmentation import check_size, random_crop, static_size

Batch = dict[str, tf.Tensor]


def image(
    batch: Batch,
    seeds: tf.Tensor,
    *,
    training: bool,
    resize: Sequence[int] | None = None,
    pad: int = 0,
    crop: Sequence[int] | None = None,
    flip: bool = False,
    scale: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Batch:
    """Resizes, crops, flips and normalises images, in this order.

    Evaluation only resizes, takes the central crop if `crop` is set, and normalises.

    Args:
        batch: "image" [n, h, w, c] of any real dtype; other entries are unchanged.
        seeds: int64 [n, 2].
        training: False: no augmentation.
        resize: (height, width) to scale images to first.
        pad: pixels of 0 added on every side before a random crop; 4 for CIFAR (arXiv 1512.03385, section 4.2).
        crop: (height, width) of the crop; None: the size of the image.
        flip: mirror left-right with probability 1/2.
        scale: factor that scales stored values to [0, 1]. None: 1/255 for integers; floats are not scaled.
        mean: subtracted after `scale`, one number per channel.
        std: divisor after `mean`, one number per channel.

    Returns:
        The batch with "image" float32 [n, height, width, c].

    Raises:
        ValueError: an argument is out of range or does not fit the images, or the batch has no images.
    """
    batch = image_bytes(batch, seeds, training=training, resize=resize, pad=pad, crop=crop, flip=flip)
    return normalised(batch, training=training, scale=scale, mean=mean, std=std)


def image_bytes(
    batch: Batch,
    seeds: tf.Tensor,
    *,
    training: bool,
    resize: Sequence[int] | None = None,
    pad: int = 0,
    crop: Sequence[int] | None = None,
    flip: bool = False,
) -> Batch:
    """Resizes, crops and flips as `image`, and leaves the dtype; `normalised` does the rest, as `config.data.finish`.

    Returns the batch with "image" [n, height, width, c] in its own dtype, such as uint8; raises as `image`.
    """
    images = batch.get("image")
    if images is None or images.shape.rank != 4:
        found = {key: tuple(value.shape) for key, value in batch.items()}
        raise ValueError(
            f'prepare:image needs a batch with "image" [n, height, width, channels]. Received: {found}. For data that '
            'are not images, set config.data.prepare to {"target": "tfdist.zoo.prepare:identity"}, or to a function of '
            "yours."
        )
    if resize is not None:
        images = resize_images(images, resize)
    if training and (pad or crop is not None or flip):
        images = random_crop(images, seeds, size=crop, pad=pad, flip=flip)
    elif crop is not None:
        images = central_crop(images, crop)
    return {**batch, "image": images}


def normalised(
    batch: Batch,
    *,
    training: bool,
    scale: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Batch:
    """Returns the batch with "image" as float32, (image * scale - mean) / std; see `image`."""
    if scale is None:
        scale = 1 / 255 if batch["image"].dtype.is_integer else 1.0
    return {**batch, "image": normalise(batch["image"], scale=scale, mean=mean, std=std)}


def _halves(
    *,
    scale: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **others: Any,
) -> tuple[Callable[..., Batch], Callable[..., Batch]]:
    """Divides `image` into a prepare and a finish function; the latter normalises, if the values have one or two bytes.

    Batches are then copied to the device as they are stored.
    """
    values = {"scale": scale, "mean": mean, "std": std}

    def on_host(batch: Batch, seeds: tf.Tensor, *, training: bool) -> Batch:
        batch = image_bytes(batch, seeds, training=training, **others)
        return batch if batch["image"].dtype.size <= 2 else normalised(batch, training=training, **values)

    def on_device(batch: Batch, *, training: bool) -> Batch:
        return normalised(batch, training=training, **values) if batch["image"].dtype.size <= 2 else batch

    return on_host, on_device


# Used instead of `image` if `config.data.finish` is not set: halves(**arguments) -> prepare, finish.
image.halves = _halves


def identity(batch: Batch, seeds: tf.Tensor, *, training: bool) -> Batch:
    """Returns the batch unchanged, for data that needs no preprocessing."""
    return batch


def resize_images(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Scales images [n, h, w, c] to `size` (height, width), bilinear with antialiasing; keeps the dtype (rounded)."""
    height, width = check_size(size, "resize")
    if images.shape[1:3] == (height, width):
        return images
    return decoding.scale(images, (height, width))


def central_crop(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Returns the central crop of `size` (height, width) of images [n, h, w, c]."""
    height, width, _ = static_size(images)
    crop_height, crop_width = check_size(size, "crop")
    if crop_height > height or crop_width > width:
        raise ValueError(
            f"prepare: crop={crop_height}x{crop_width} is larger than the images of {height}x{width} pixels, and "
            "there is no padding in evaluation. Use a smaller crop or a larger `resize`."
        )
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    return images[:, top : top + crop_height, left : left + crop_width]


def normalise(
    images: tf.Tensor, *, scale: float = 1.0, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> tf.Tensor:
    """Returns (images * scale - mean) / std as float32; `mean` and `std` have one number per channel."""
    channels = images.shape[-1]
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and np.shape(values) != (channels,):
            raise ValueError(f"prepare: {name} must have {channels} numbers, one per channel. Received: {values!r}")
    if std is not None and min(std) <= 0:
        raise ValueError(f"prepare: std must be above 0. Received: {std!r}")
    if mean is None and std is None:
        return tf.cast(images, tf.float32) * scale
    factor = np.full(channels, scale) / (1.0 if std is None else np.asarray(std, np.float64))
    offset = np.zeros(channels) if mean is None else -np.asarray(mean, np.float64) / scale * factor
    # Constants of the length of an image row: broadcasting along the channel axis takes seven times as long.
    _, width, _ = static_size(images)
    rows = tf.cast(tf.reshape(images, [-1, width * channels]), tf.float32)
    rows = rows * np.tile(factor, width).astype(np.float32) + np.tile(offset, width).astype(np.float32)
    return tf.reshape(rows, [-1, *images.shape[1:]])
