"""Preprocessing and augmentation of whole batches of images, without state.

`image` is the prepare function for a config. The others are its parts, pure functions for other prepare functions. The
random ones take `seeds` (int64 [n, 2], one row per example) and `draw`, the stream of random numbers. The result for an
example depends only on its row of `seeds`: it has the same bits in any batch, at any position. The exception is
`random_mixup`, which mixes pairs of neighbours.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.zoo import stateless_random
from tfdist.zoo.mixup import random_cutout, random_mixup, static_size

Batch = dict[str, tf.Tensor]

PAD_MODES = ("zero", "reflect")


def image(
    batch: Batch,
    seeds: tf.Tensor,
    *,
    training: bool,
    resize: Sequence[int] | None = None,
    pad: int = 0,
    pad_mode: str = "zero",
    crop: Sequence[int] | None = None,
    flip: bool | str = False,
    scale: float | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    cutout: int = 0,
    mixup: float = 0.0,
    num_classes: int | None = None,
) -> Batch:
    """Resizes, crops, flips, normalises, cuts out and mixes images, in this order.

    Evaluation only resizes, takes the central crop if `crop` is set, and normalises.

    Args:
        batch: "image" [n, h, w, c] of any real dtype; "label" int64 [n] for mixup; other entries are unchanged.
        seeds: int64 [n, 2].
        training: False: no augmentation.
        resize: (height, width) to scale images to first.
        pad: pixels added on every side before a random crop; 4 for CIFAR (arXiv 1512.03385, section 4.2).
        pad_mode: "zero" pads with 0, "reflect" mirrors the image at its border pixels.
        crop: (height, width) of the crop; None: the size of the image.
        flip: True: mirror left-right with probability 1/2. "alternate": mirror half of the examples in even epochs, and
            the other half in odd epochs (arXiv 2404.00498, section 3.6).
        scale: factor that scales stored values to [0, 1]. None: 1/255 for integers; floats are not scaled.
        mean: subtracted after `scale`, one number per channel.
        std: divisor after `mean`, one number per channel.
        cutout: side in pixels of the square set to the mean; 0: none; 16 for CIFAR-10 (arXiv 1708.04552).
        mixup: alpha of Beta(alpha, alpha) for mixing pairs (arXiv 1710.09412); 0: no mixup. Labels become
            float32 [n, num_classes] in training, and remain int64 [n] in evaluation.
        num_classes: the number of classes, required for mixup.

    Returns:
        The batch with "image" float32 [n, height, width, c].

    Raises:
        ValueError: an argument is out of range or does not fit the images, or the batch has no images.
    """
    batch = image_bytes(
        batch, seeds, training=training, resize=resize, pad=pad, pad_mode=pad_mode, crop=crop, flip=flip
    )
    batch = normalised(batch, training=training, scale=scale, mean=mean, std=std)
    if training and cutout:
        batch["image"] = random_cutout(batch["image"], seeds, size=cutout)
    return random_mixup(batch, seeds, alpha=mixup, num_classes=num_classes) if training and mixup else batch


def image_bytes(
    batch: Batch,
    seeds: tf.Tensor,
    *,
    training: bool,
    resize: Sequence[int] | None = None,
    pad: int = 0,
    pad_mode: str = "zero",
    crop: Sequence[int] | None = None,
    flip: bool | str = False,
) -> Batch:
    """Resizes, crops and flips as `image`, and leaves the dtype; `normalised` does the rest, as `config.data.finish`.

    Returns:
        The batch with "image" [n, height, width, c] in its own dtype, such as uint8.

    Raises:
        ValueError: as `image`.
    """
    images = batch.get("image")
    if images is None or images.shape.rank != 4:
        found = {key: tuple(value.shape) for key, value in batch.items()}
        raise ValueError(f'prepare:image needs a batch with "image" [n, height, width, channels]. Received: {found}')
    if resize is not None:
        images = resize_images(images, resize)
    if training and (pad or crop is not None or flip):
        images = random_crop(images, seeds, size=crop, pad=pad, pad_mode=pad_mode, flip=flip)
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
    del training
    if scale is None:
        scale = 1 / 255 if batch["image"].dtype.is_integer else 1.0
    return {**batch, "image": normalise(batch["image"], scale=scale, mean=mean, std=std)}


def identity(batch: Batch, seeds: tf.Tensor, *, training: bool) -> Batch:
    """Returns the batch unchanged, for data that needs no preprocessing."""
    del seeds, training
    return batch


def resize_images(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Scales images [n, h, w, c] to `size` (height, width), bilinear with antialiasing; keeps the dtype (rounded)."""
    height, width = _size(size, "resize")
    if images.shape[1:3] == (height, width):
        return images
    resized = tf.image.resize(images, (height, width), antialias=True)
    if images.dtype.is_integer:
        resized = tf.round(resized)
    return tf.saturate_cast(resized, images.dtype)


def random_crop(
    images: tf.Tensor,
    seeds: tf.Tensor,
    *,
    size: Sequence[int] | None = None,
    pad: int = 0,
    pad_mode: str = "zero",
    flip: bool | str = False,
    draw: int = 0,
) -> tf.Tensor:
    """Pads images, crops each at a uniformly random position, and mirrors half of them if `flip` is set.

    One function for all three: reading the pixels of a crop in mirrored order costs nothing extra.

    Args:
        images: [n, h, w, c], any dtype.
        seeds: int64 [n, 2].
        size: (height, width) of the crop; None: (h, w).
        pad: pixels added on every side.
        pad_mode: "zero" or "reflect".
        flip: as in `image`.
        draw: the stream of random numbers used.

    Returns:
        [n, height, width, c], the same dtype.
    """
    height, width, _ = static_size(images)
    if not (isinstance(pad, int) and pad >= 0):
        raise ValueError(f"prepare: pad must be an integer number of pixels from 0. Received: {pad!r}")
    if flip not in (False, True, "alternate"):
        raise ValueError(f'prepare: flip must be True, False or "alternate". Received: {flip!r}')
    if pad_mode not in PAD_MODES:
        raise ValueError(f"prepare: pad_mode must be one of {', '.join(PAD_MODES)}. Received: {pad_mode!r}")
    if pad_mode == "reflect" and pad >= min(height, width):
        raise ValueError(
            f"prepare: pad={pad} is too large to reflect images of {height}x{width} pixels: it must be smaller."
        )
    crop_height, crop_width = (height, width) if size is None else _size(size, "crop")
    places_down, places_across = height + 2 * pad - crop_height + 1, width + 2 * pad - crop_width + 1
    if places_down < 1 or places_across < 1:
        raise ValueError(
            f"prepare: crop={crop_height}x{crop_width} is larger than the images of {height}x{width} pixels with "
            f"pad={pad}. Use a smaller crop, or a larger `resize` or `pad`."
        )
    draws = stateless_random.uniform(seeds, draw, 3)
    top = tf.cast(draws[:, 0] * places_down, tf.int32)
    left = tf.cast(draws[:, 1] * places_across, tf.int32)
    across = tf.range(crop_width)
    if flip:
        mirrored = _alternately(seeds, draw) if flip == "alternate" else draws[:, 2] < 0.5
        across = tf.where(mirrored[:, tf.newaxis], crop_width - 1 - across, across)
    rows, columns = top[:, tf.newaxis] + tf.range(crop_height), left[:, tf.newaxis] + across
    if pad_mode == "reflect":
        return _take_pixels(images, _reflect(rows - pad, height), _reflect(columns - pad, width))
    return _take_pixels(_pad(images, pad), rows, columns)


def _alternately(seeds: tf.Tensor, draw: int) -> tf.Tensor:
    """Returns bool [n]: random for each example in epoch 0, and inverted in each following epoch."""
    # The first column is (seed << 32) | epoch; see `tfdist.data.order.seeds`.
    epoch = tf.bitwise.bitwise_and(seeds[:, 0], 0xFFFFFFFF)
    at_first = stateless_random.uniform(tf.stack([seeds[:, 0] - epoch, seeds[:, 1]], axis=1), draw, 3)[:, 2] < 0.5
    return tf.equal(at_first, epoch % 2 == 0)


def random_flip(images: tf.Tensor, seeds: tf.Tensor, *, draw: int = 0) -> tf.Tensor:
    """Mirrors each image of [n, h, w, c] left-right with probability 1/2."""
    return random_crop(images, seeds, flip=True, draw=draw)


def central_crop(images: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Returns the central crop of `size` (height, width) of images [n, h, w, c]."""
    height, width, _ = static_size(images)
    crop_height, crop_width = _size(size, "crop")
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
    return _reshape_like(rows, images)


def _pad(images: tf.Tensor, pad: int) -> tf.Tensor:
    # Rows of width * channels values: five times as fast as padding pixels of `channels` values.
    height, width, channels = static_size(images)
    rows = tf.reshape(images, [-1, height, width * channels])
    rows = tf.pad(rows, ((0, 0), (pad, pad), (pad * channels, pad * channels)))
    return tf.reshape(rows, [-1, height + 2 * pad, width + 2 * pad, channels])


def _reflect(positions: tf.Tensor, length: int) -> tf.Tensor:
    """Reflects positions outside of [0, length) at the first and last one: -1 -> 1, `length` -> `length - 2`."""
    return length - 1 - tf.abs(length - 1 - tf.abs(positions))


def _take_pixels(images: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
    """Returns pixels [n, a, b, c] of images [n, h, w, c] at `rows` (int32 [n, a]) and `columns` (int32 [n or 1, b])."""
    height, width, channels = static_size(images)
    # One gather of pixels for all examples: the fastest of eight variants on one core, 7 ms for 1,024 crops of
    # 32x32 (ImageProjectiveTransformV3 17 ms, grouping by offset 22 ms).
    pixels = tf.reshape(images, [-1, height * width, channels])
    return tf.gather(pixels, (rows * width)[:, :, tf.newaxis] + columns[:, tf.newaxis, :], batch_dims=1)


def _reshape_like(values: tf.Tensor, original: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1, *original.shape[1:]])


def _size(size: Sequence[int], name: str) -> tuple[int, int]:
    if np.shape(size) != (2,) or not all(isinstance(length, int) and length >= 1 for length in size):
        raise ValueError(f"prepare: {name} must be (height, width) in pixels. Received: {size!r}")
    return size[0], size[1]
