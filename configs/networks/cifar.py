"""CIFAR-10 and CIFAR-100 in the folders of Python pickles that their authors distribute."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.config import paths
from tfdist.zoo import splits as splits_lib
from tfdist.zoo.sources.arrays import Arrays, arrays

# What the pickles of the distributed files name, for the versions of NumPy that wrote and read them.
_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}
_PIXELS = 3 * 32 * 32
# Folder -> files of each split, key of the labels, classes.
_LAYOUTS = {
    "cifar-10-batches-py": (
        {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
        b"labels",
        10,
    ),
    "cifar-100-python": ({"train": ["train"], "test": ["test"]}, b"fine_labels", 100),
}


def cifar(split: str, *, path: str) -> Arrays:
    """CIFAR-10 or CIFAR-100 (A. Krizhevsky, 2009) as distributed: images 32x32, classes 0..9, or fine classes 0..99.

    Args:
        split: "train" (50,000 images) or "test" (10,000), with or without a slice.
        path: the unpacked folder, cifar-10-batches-py or cifar-100-python, or the folder that contains one of them. The
            layout is recognised by the names of the files. They may contain NumPy arrays, lists, dictionaries, strings
            and numbers only: anything else is rejected unread, since unpickling it could run code.

    Returns a source of {"image": uint8 [n, 32, 32, 3], "label": int64 [n]}, in the order of the files. Raises
    FileNotFoundError if one is missing, and ValueError if one is damaged or contains other objects.
    """
    root = paths.local(path, "path")
    for layout, (files, labels, num_classes) in _LAYOUTS.items():
        folder = next((one for one in (root, root / layout) if (one / files["test"][0]).is_file()), None)
        if folder is None:
            continue
        name = f"cifar {str(folder)!r}"
        part = splits_lib.split_name(split, files, source=name)
        pieces = [_read(folder / file, labels) for file in files[part]]
        pixels = np.concatenate([piece[0] for piece in pieces]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        features = {"image": np.ascontiguousarray(pixels), "label": np.concatenate([piece[1] for piece in pieces])}
        return arrays(split, splits={part: features}, num_classes=num_classes, name=name)
    raise FileNotFoundError(
        f"cifar: {str(root)!r} is none of the folders {' and '.join(_LAYOUTS)}, and contains none of them. The binary "
        "version of CIFAR is not read: download the Python version."
    )


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and plain containers; refuses every other object before it is made."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains an object of {module}.{name}, which no CIFAR file has")
        return super().find_class(module, name)


def _read(file: Path, labels: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pixels, uint8 [n, 3072], and the labels, int64 [n], of one batch."""
    try:
        with open(file, "rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
        pixels, numbers = np.asarray(content[b"data"]), np.asarray(content[labels], np.int64)
    except FileNotFoundError:
        raise
    except Exception as error:  # A damaged pickle raises errors of any class.
        raise ValueError(f"cifar: {str(file)!r} is damaged or not a CIFAR file: {error}.") from None
    if pixels.dtype != np.uint8 or pixels.shape != (len(numbers), _PIXELS):
        raise ValueError(
            f"cifar: {str(file)!r} must contain uint8 [n, {_PIXELS}] and n labels. Received: {pixels.dtype} "
            f"{list(pixels.shape)} and {list(numbers.shape)}."
        )
    return pixels, numbers
