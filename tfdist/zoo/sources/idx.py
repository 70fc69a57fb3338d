"""MNIST and data sets in its format: four idx files, compressed or not."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from tfdist.config import paths
from tfdist.zoo import splits as splits_lib
from tfdist.zoo.sources.arrays import Arrays, arrays

_PREFIXES = {"train": "train", "test": "t10k"}
# How a file of bytes begins: its third byte names the type of its numbers.
_MAGIC = b"\0\0\x08"


def idx(split: str, *, path: str, num_classes: int | None = None) -> Arrays:
    """MNIST, Fashion-MNIST, KMNIST and others in the files of Y. LeCun's page: train-images-idx3-ubyte and so on.

    Args:
        split: "train" or "test", with or without a slice.
        path: the folder with the files {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, each plain or
            compressed (.gz).
        num_classes: the number of classes; None: the largest label of the split + 1.

    Returns a source of {"image": uint8 [n, height, width, 1], "label": int64 [n]}, in the order of the files. Raises
    FileNotFoundError if one is missing, and ValueError if one is damaged.
    """
    folder = paths.local(path, "path")
    name = f"idx {str(folder)!r}"
    part = splits_lib.split_name(split, _PREFIXES, source=name)
    images = _read(folder, f"{_PREFIXES[part]}-images-idx3-ubyte")
    labels = _read(folder, f"{_PREFIXES[part]}-labels-idx1-ubyte")
    features = {"image": images[..., np.newaxis], "label": labels}
    return arrays(split, splits={part: features}, num_classes=num_classes, name=name)


def _read(folder: Path, name: str) -> np.ndarray:
    """Returns the array in the idx file `name` or `name`.gz."""
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            break
    else:
        raise FileNotFoundError(f"idx: there is neither {name} nor {name}.gz in {str(folder)!r}.")
    content = file.read_bytes()
    try:
        content = gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"idx: {str(file)!r} is damaged: {error}.") from None
    if len(content) < 4 or content[:3] != _MAGIC:
        raise ValueError(f"idx: {str(file)!r} is not an idx file of bytes: it begins with {content[:4].hex()!r}.")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], ">i4").tolist()
    if len(content) != (expected := start + math.prod(shape)):
        raise ValueError(f"idx: {str(file)!r} is damaged: {len(content)} bytes where its header says {expected}.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
