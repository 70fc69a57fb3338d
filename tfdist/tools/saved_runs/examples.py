"""Files to predict as a source of examples: images, arrays in .npz files, tables."""

import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config import specs
from tfdist.tools.saved_runs.saved import SavedRun

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
ARRAYS, TABLES = (".npz",), (".csv", ".tsv", ".parquet", ".pq")
# Maximum number of values that a warning names.
_MOST = 5


def _of_zoo(name: str) -> Any:
    """Returns a function that finds, reads or encodes the examples of files, as in training."""
    return specs.resolve({"target": f"tfdist.zoo.{name}"}, field="data.json")


class Rows:
    """A source of the rows of an array, with the `names` of the examples.

    `labels`: int64 [n], -1 for an example without a label; None: there are no labels.
    `targets`: float32 [n], the true values of the numbers that the model predicts, NaN if unknown; None: all unknown.
    """

    # The heading of the names.
    kind = "row"

    def __init__(
        self, key: str, array: np.ndarray, labels: np.ndarray | None = None, targets: np.ndarray | None = None
    ):
        self._key, self._array, self.labels, self.targets = key, array, labels, targets
        self.names = [str(number) for number in range(len(array))]

    def __len__(self) -> int:
        return len(self.names)

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rows `ids`, int64 [n], with "label", int64 [n]."""
        labels = tf.zeros_like(ids) if self.labels is None else tf.maximum(tf.gather(self.labels, ids), 0)
        return {"label": labels, self._key: tf.gather(self._array, ids)}


def image_files(files: Sequence[Path], shape: tuple[int, int, int] | None, classes: Sequence[str]) -> Any:
    """Returns a source of image files, scaled to `shape` [height, width, channels]; None: as they are, encoded.

    A file in a folder with the name of a class has this label.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers.get(file.parent.name, -1) for file in files], np.int64)
    part, names = _of_zoo("splits:Slice")("all", 0, len(files)), [str(file) for file in files]
    source = _of_zoo("sources.folder:ImageFiles")("images", part, names, np.maximum(labels, 0), shape)
    source.kind, source.labels = "file", labels if (labels >= 0).any() else None
    return source


def find(words: Sequence[str]) -> tuple[str, list[Path]]:
    """Returns the kind of the files that `words` name, "images", "arrays" or "table", and the files.

    A folder stands for all images in it and in the folders below; other files there are skipped, and a line says so.
    Raises ValueError if there are none, or several kinds.
    """
    found: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside, others = _of_zoo("sources.folder:images_below")(str(path))
            if not inside:
                raise ValueError(f"{word} is a folder without images ({', '.join(IMAGES)}).")
            if others:
                left = ", ".join(f"{count} with {suffix}" for suffix, count in others.items())
                print(f"{word}: not read: {left}", file=sys.stderr)
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"There is no file or folder {os.path.abspath(path)}.")
    suffixes = {path.suffix.lower() for path in found}
    for kind, known in (("images", IMAGES), ("arrays", ARRAYS), ("table", TABLES)):
        if suffixes <= {*known}:
            if kind != "images" and len(found) > 1:
                raise ValueError(f"Give one file of this kind. Received: {', '.join(map(str, found[:3]))}")
            return kind, found
    raise ValueError(
        f"Files must be images ({', '.join(IMAGES)}), or one array ({', '.join(ARRAYS)}), or one table "
        f"({', '.join(TABLES)}). Received: {', '.join(sorted(suffixes))}"
    )


def read_array(path: Path, key: str) -> np.ndarray:
    """Returns the array `key` of a .npz file, or its only one; raises ValueError if there is none, or it is damaged."""
    try:
        with np.load(path) as file:
            name = key if key in file.files or len(file.files) != 1 else file.files[0]
            if name not in file.files:
                raise ValueError(f"it must have the array {key!r}, and has {', '.join(file.files) or 'none'}")
            array = file[name]
    except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read: {str(error).partition('. ')[0]}.") from None
    return array.astype(np.float32) if array.dtype == np.float64 else array


def read_table(saved: SavedRun, key: str, path: Path) -> Rows:
    """Reads a table that has the columns of the training table, with or without the label.

    Warns of categories with values that the training table lacks. Raises ValueError if a column is missing, or has text
    instead of numbers.
    """
    columns, label = saved.about["columns"], saved.label_column
    names = ("read", "encode", "class_name", "is_number", "as_float32")
    read, encode, class_name, is_number, as_float32 = (_of_zoo(f"sources.table:{name}") for name in names)
    # pandas would read a category as numbers if all its values in this file are digits.
    categories = [name for name, each in columns.items() if each["kind"] == "category"]
    frame = read(str(path), categories)
    for name in categories:
        new = sorted({*frame[name].dropna().astype(str)} - {*columns[name]["values"]}) if name in frame else []
        if new:
            shown = ", ".join(new[:_MOST]) + (", ..." if len(new) > _MOST else "")
            print(f"WARNING: {path}: {name} has values that the training data did not have: {shown}", file=sys.stderr)
    labels = targets = None
    if columns[label]["kind"] == "class" and label in frame:
        numbers = {text: number for number, text in enumerate(columns[label]["values"])}
        labels = np.array([numbers.get(class_name(value), -1) for value in frame[label]], np.int64)
        labels = labels if (labels >= 0).any() else None
    elif label in frame and is_number(frame[label]):
        targets = as_float32(frame[label])
    return Rows(key, encode(frame, columns), labels, targets)


def open_examples(saved: SavedRun, words: Sequence[str]) -> Any:
    """Opens the files or folders that `words` name as a source; raises ValueError if they do not fit the model."""
    kind, files = find(words)
    key = saved.input_key()
    shape = saved.about.get("prepared", {}).get(key, {}).get("shape", [])  # The shape of a prepared example.
    if kind == "arrays":
        array = read_array(files[0], key)
        # As the source `npz`: images without channels get an axis.
        array = array[..., np.newaxis] if key == "image" and array.ndim == 3 == len(shape) else array
        return Rows(key, array)
    if kind == "images":
        data = saved.config.data
        # Inception's preprocessing takes encoded images of any size.
        encoded = str(data.prepare["target"]).endswith("inception:image") and not data.source.get("size")
        size = None if encoded else image_shape(saved, shape, files[0])
        return image_files(files, size, saved.classes)
    if not saved.label_column:
        raise ValueError(f"{saved.workdir} was not trained on a table: give images, or a .npz file with {key!r}.")
    return read_table(saved, key, files[0])


def image_shape(saved: SavedRun, prepared: Sequence[int], first: Path) -> tuple[int, int, int]:
    """Returns (height, width, channels) of an image as the source of the run returns it; raises ValueError if unknown.

    `prepared` is the shape of a prepared example. If the run crops images, all files must have the size of the first
    one.
    """
    data = saved.config.data
    cropped = _of_zoo("decoding:image_size")(str(first)) if data.prepare.get("crop") else None
    size = data.source.get("size") or data.prepare.get("resize") or cropped or prepared[:2]
    if len(prepared) != 3 or None in (*size, prepared[2]):
        raise ValueError(
            f"The model of {saved.workdir} takes examples of shape {list(prepared)}, and not images: give a .npz file "
            "or a table."
        )
    return int(size[0]), int(size[1]), int(data.source.get("channels", prepared[2]))
