"""CIFAR-10 and CIFAR-100 in the folders that their authors distribute, as Python pickles or as binary files."""

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
# Folder -> files of "train", files of "test", key of the labels, classes.
_PICKLES = {
    "cifar-10-batches-py": ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"], b"labels", 10),
    "cifar-100-python": (["train"], ["test"], b"fine_labels", 100),
}
# Folder -> files of "train", files of "test", bytes of labels (the last one counts), classes.
_BINARIES = {
    "cifar-10-batches-bin": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 1, 10),
    "cifar-100-binary": (["train.bin"], ["test.bin"], 2, 100),
}


def cifar(split: str, *, path: str) -> Arrays:
    """CIFAR-10 or CIFAR-100 (A. Krizhevsky, 2009) as distributed: images 32x32, classes 0..9, or fine classes 0..99.

    Args:
        split: "train" (50,000 images) or "test" (10,000), with or without a slice.
        path: the unpacked folder: cifar-10-batches-py, cifar-10-batches-bin, cifar-100-python or cifar-100-binary, or
            the folder that contains one of them. The layout is recognised by the names of the files. Pickles may
            contain NumPy arrays, lists, dictionaries, strings and numbers only: anything else is rejected unread,
            since unpickling it could run code.

    Returns a source of {"image": uint8 [n, 32, 32, 3], "label": int64 [n]}, in the order of the files. Raises
    FileNotFoundError if one is missing, and ValueError if one is damaged or contains other objects.
    """
    folder = paths.local(path, "path")
    layouts = _PICKLES | _BINARIES
    found = [(f, name) for name in layouts for f in (folder, folder / name) if (f / layouts[name][1][0]).is_file()]
    if not found:
        listed = ", ".join(layouts)
        if not folder.exists():
            raise FileNotFoundError(f"cifar: there is no folder {str(folder)!r}. It must be one of {listed}.")
        raise FileNotFoundError(f"cifar: {str(folder)!r} is none of the folders {listed}, and contains none of them.")
    folder, layout = found[0]
    train, test, labels, num_classes = layouts[layout]
    name = f"cifar {str(folder)!r}"
    part = splits_lib.split_name(split, {"train": train, "test": test}, source=name)
    read = _read_pickle if layout in _PICKLES else _read_binary
    pieces = [read(folder / file, labels) for file in {"train": train, "test": test}[part]]
    pixels = np.concatenate([piece[0] for piece in pieces]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    features = {"image": np.ascontiguousarray(pixels), "label": np.concatenate([piece[1] for piece in pieces])}
    return arrays(split, splits={part: features}, num_classes=num_classes, name=name)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and plain containers; refuses every other object before it is made."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it contains an object of {module}.{name}, which no CIFAR file has")
        return super().find_class(module, name)


def _read_pickle(file: Path, labels: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pixels, uint8 [n, 3072], and the labels, int64 [n], of one pickled batch."""
    try:
        with open(file, "rb") as stream:
            content = _ArraysOnly(stream, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as error:  # A damaged pickle raises errors of any class.
        raise ValueError(f"cifar: {str(file)!r} is damaged or not a CIFAR file: {error}.") from None
    if not (isinstance(content, dict) and {b"data", labels} <= content.keys()):
        raise ValueError(f"cifar: {str(file)!r} must contain a dictionary with b'data' and {labels!r}.")
    return _check(file, content[b"data"], content[labels])


def _read_binary(file: Path, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pixels, uint8 [n, 3072], and the labels, int64 [n], of one binary batch."""
    content = np.fromfile(file, np.uint8)
    if len(content) % (labels + _PIXELS):
        raise ValueError(
            f"cifar: {str(file)!r} is damaged: its {len(content)} bytes are no multiple of {labels + _PIXELS}."
        )
    records = content.reshape(-1, labels + _PIXELS)
    return _check(file, records[:, labels:], records[:, labels - 1])


def _check(file: Path, pixels: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = np.asarray(pixels), np.asarray(labels)
    integers = labels.dtype.kind in "iu" and labels.ndim == 1
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _PIXELS) or not integers:
        raise ValueError(
            f"cifar: {str(file)!r} must contain uint8 [n, {_PIXELS}] and n integer labels. Received: {pixels.dtype} "
            f"{list(pixels.shape)} and {labels.dtype} {list(labels.shape)}."
        )
    return pixels, labels.astype(np.int64)
