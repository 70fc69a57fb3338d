"""Writes the images of a config's splits once, at the size that training needs, as JPEGs.

The files are those of a cache on disk (`tfdist.data.cache.example_files`), a folder for each split, which
`tfdist.zoo.sources:prepared` reads.
"""

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import diff
from tfdist.data import autograph
from tfdist.data.cache import example_files
from tfdist.data.feed import Batch
from tfdist.data.stream import Source

_CHUNK = 64
_PARALLEL_IMAGES = 16
# Of the JPEGs, 1 to 100.
QUALITY = 90
# Seconds between two lines about the progress.
_PROGRESS_SECONDS = 20.0


def write_split(source: Source, spec: dict[str, Any], split: str, size: int, output: Path) -> tuple[int, float]:
    """Writes the examples of `split` to OUTPUT/SPLIT, completely or not at all, unless they are there.

    Args:
        source: the split; "image" is encoded, string [n]. Other columns are kept.
        spec: of the source, to know it again.
        size: the shorter side in pixels at most, with the aspect ratio kept.

    Returns bytes of the files, and seconds that writing took, 0 if they were there. Raises ValueError if another
    folder is there, or the source has no images; OSError, which names the folder, if it cannot be written.
    """
    folder = output / split
    made = {"source": diff.to_json(spec), "split": split, "size": size, "quality": QUALITY}
    made |= {"fingerprint": getattr(source, "fingerprint", str)(), "examples": len(source)}
    made["modified"] = getattr(source, "modified", str)()
    facts = {"made": made, "num_classes": getattr(source, "num_classes", None)}
    facts |= {name: list(getattr(source, name)) for name in ("classes",) if getattr(source, name, None) is not None}
    started = time.perf_counter()
    try:
        output.mkdir(parents=True, exist_ok=True)
        with example_files.hold_lock(output / f".{split}.lock"):
            present = folder.exists()
            if not present:
                example_files.write(folder, _chunks(source, size, split), len(source), facts)
            elif different := _difference(example_files.read_manifest(folder), made):
                raise ValueError(
                    f"--output={output}: {split!r} is there, made from other data, with other flags or not by this "
                    f"command: {different}. Remove {folder}, or give another folder."
                )
    except OSError as error:
        if error.errno is None:
            raise
        more = " Complete splits are kept." if error.errno == errno.ENOSPC else ""
        reason = os.strerror(error.errno)
        raise type(error)(
            f"--output={output} cannot be written: {reason}. Free space, or give another folder.{more}"
        ) from None
    num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return num_bytes, 0.0 if present else time.perf_counter() - started


def _difference(manifest: dict[str, Any] | None, wanted: dict[str, Any]) -> str:
    """Returns the first difference between what is there and what is wanted; "" if there is none."""
    if manifest is None or not isinstance(manifest.get("made"), dict):
        return "no complete examples"
    present = {"modified": wanted["modified"], **manifest["made"]}  # Not written before.
    name = next((name for name, value in wanted.items() if present.get(name) != value), None)
    if name == "modified":
        return "the sizes or times of its files have changed"
    return "" if name is None else f"{name}={present.get(name)!r}, not {wanted[name]!r}"


def _chunks(source: Source, size: int, split: str) -> Iterator[dict[str, np.ndarray]]:
    read = autograph.convert_read(source)
    done, started, shown = 0, time.perf_counter(), time.perf_counter()
    with tf.device("CPU:0"):
        for chunk in example_files.chunks(lambda ids: _store(read(ids), size), len(source), _CHUNK):
            yield chunk
            done += len(chunk["image"])
            if time.perf_counter() - shown > _PROGRESS_SECONDS:
                shown = time.perf_counter()
                rate = done / (shown - started)
                print(f"{split}: {done:,} of {len(source):,} images, {rate:,.0f} images/s", file=sys.stderr, flush=True)


def _store(batch: Batch, size: int) -> Batch:
    """Returns the batch with its images as JPEGs."""
    images = batch.get("image")
    if images is None or images.dtype != tf.string:
        found = {name: (value.dtype.name, tuple(value.shape)) for name, value in batch.items()}
        raise ValueError(f'--size needs a source of encoded images, "image" string [n]. Received: {found}')

    def store(content: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_image(content, channels=3, expand_animations=False)
        pixels = tf.ensure_shape(pixels, [None, None, 3])
        # A JPEG that is small enough is not compressed a second time.
        kept = tf.io.is_jpeg(content) & (tf.reduce_min(tf.shape(pixels)[:2]) <= size)
        return tf.where(kept, content, tf.io.encode_jpeg(_resize(pixels, size), quality=QUALITY))

    string = tf.TensorSpec([], tf.string)
    stored = tf.map_fn(store, images, fn_output_signature=string, parallel_iterations=_PARALLEL_IMAGES)
    return {**batch, "image": stored}


def _resize(pixels: tf.Tensor, size: int) -> tf.Tensor:
    """Scales one image to the shorter side `size`, bilinear with antialiasing; a smaller image keeps its size."""
    height_width = tf.shape(pixels)[:2]
    factor = size / tf.maximum(tf.reduce_min(height_width), size)
    shape = tf.maximum(1, tf.cast(tf.round(tf.cast(height_width, tf.float64) * factor), tf.int32))
    return tf.saturate_cast(tf.round(tf.image.resize(pixels, shape, antialias=True)), tf.uint8)
