"""Decodes image files, and other examples of a batch one by one."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Examples decoded in parallel; more were not faster on two cores.
_PARALLEL = 16
# Examples decoded by one iteration of the loop, if the batch is divisible by as many.
_GROUP = 8


def decode_each(decode: Callable[[tf.Tensor], Any], contents: tf.Tensor, signature: Any) -> Any:
    """Returns `tf.map_fn(decode, contents)`, in fewer iterations.

    An iteration of `tf.map_fn` takes as long as decoding a small image. `contents` is string [n]; `signature`, nested
    tf.TensorSpec, has the shapes and dtypes that `decode` returns.
    """
    decode = tf.autograph.experimental.do_not_convert(decode)
    group = math.gcd(contents.shape[0] or 1, _GROUP)
    parallel = None if tf.executing_eagerly() else _PARALLEL // group
    if group == 1:
        return tf.map_fn(decode, contents, fn_output_signature=signature, parallel_iterations=parallel)

    def decode_group(strings: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda *values: tf.stack(values), *map(decode, tf.unstack(strings)))

    grouped = tf.nest.map_structure(lambda spec: tf.TensorSpec([group, *spec.shape], spec.dtype), signature)
    contents_of_groups = tf.reshape(contents, [-1, group])
    decoded = tf.map_fn(decode_group, contents_of_groups, fn_output_signature=grouped, parallel_iterations=parallel)
    return tf.nest.map_structure(
        lambda values, spec: tf.reshape(values, [contents.shape[0], *spec.shape]), decoded, signature
    )


def num_values(contents: tf.Tensor) -> tf.Tensor:
    """Decodes images, string [n], of any sizes, and returns how many values they have, int32 [n]."""
    return tf.map_fn(lambda content: tf.size(decode_image(content, 3)), contents, fn_output_signature=tf.int32)


def decode_image(content: tf.Tensor, channels: int) -> tf.Tensor:
    """Returns the image in the content of a file, uint8 [height, width, channels]; of a GIF, the first one."""
    image = tf.io.decode_image(content, channels=channels, expand_animations=False)
    return tf.ensure_shape(image, [None, None, channels])


def scale(image: tf.Tensor, size: Sequence[int]) -> tf.Tensor:
    """Scales an image, or images, to `size` (height, width), bilinear with antialiasing; keeps the dtype (rounded)."""
    resized = tf.image.resize(image, size, antialias=True)
    return tf.saturate_cast(tf.round(resized) if image.dtype.is_integer else resized, image.dtype)


def image_size(path: str) -> tuple[int, int]:
    """Returns (height, width) of a JPEG, PNG, GIF or BMP file, from its header; raises ValueError, which names it."""
    from PIL import Image

    try:
        with Image.open(path, formats=("JPEG", "PNG", "GIF", "BMP")) as image:
            return image.height, image.width
    except (Image.UnidentifiedImageError, Image.DecompressionBombError):
        why = "not a JPEG, PNG, GIF or BMP file, cut off, or too large"
        raise ValueError(f"The image {path!r} cannot be read: {why}.") from None
