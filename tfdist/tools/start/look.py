"""Looks at somebody's data: which source of a config reads them, how they are divided, and what an example is."""

import collections
import dataclasses
import functools
import os
import statistics
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.config import specs
from tfdist.config import text as text_lib

_SOURCES = "tfdist.zoo.sources"
_EVALUATION = ("test", "val", "valid", "validation", "evaluation")
# Images whose size is looked at, evenly spaced; the largest side that is kept as it is.
_MAX_IMAGES, _LARGEST = 200, 128

_few = functools.partial(text_lib.list_names, limit=8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Data that a config can read."""

    # "images", "table", "arrays" or "text".
    kind: str
    # `config.data.source`, without arguments that are the default.
    source: dict[str, Any]
    train_split: str = "train"
    evaluation_split: str = "test"
    # The sources of both splits.
    training: Any
    evaluation: Any
    # Key and shape of the inputs, and the key of the labels or targets.
    inputs: str
    shape: tuple[int, ...]
    labels: str
    # The number of classes; None: the targets are numbers.
    classes: int | None
    # Mean and standard deviation of targets that are numbers, and how many an example has.
    scale: tuple[float, float] = (0.0, 1.0)
    targets: int = 1
    # What was found, for people.
    lines: tuple[str, ...]

    @property
    def has_images(self) -> bool:
        """Whether the inputs are images: some files call any inputs so."""
        return self.inputs == "image" and len(self.shape) == 3


def images(path: Path) -> Data:
    """Looks at a folder of class folders, with or without folders of splits.

    Raises ValueError if there are no images in such folders, or the first one is damaged.
    """
    source: dict[str, Any] = {"target": f"{_SOURCES}:image_folder", "path": str(path)}
    folders = sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))
    divided = [name for name in folders if any(entry.is_dir() for entry in os.scandir(path / name))]
    of_folders = _splits(divided)
    if len(divided) == 1 and len(folders) == 1 and not of_folders:
        of_folders = f"{divided[0]}[:80%]", f"{divided[0]}[80%:]"
    splits = of_folders or ("train", "test")
    files, others = specs.resolve({"target": f"{_SOURCES}.folder:images_below"}, field="--images")(str(path))
    unread = f"not read: {', '.join(f'{count:,} with {suffix}' for suffix, count in sorted(others.items()))}"
    if not files:
        raise ValueError(
            f"--images={path}: there are no images{f'; {unread}' if others else ''}. Expected: .jpg, .jpeg, .png, .bmp "
            f"or .gif in a folder for each class, as {path}/cat/1.jpg, or for each split and class, as "
            f"{path}/train/cat/1.jpg."
        )
    size, channels, note = _image_form(files[:: -(-len(files) // _MAX_IMAGES)])
    source |= ({"size": size} if size else {}) | ({"channels": 1} if channels == 1 else {})
    training, evaluation = (specs.build(source, split, field="--images") for split in splits)
    batch = _first(training)
    shape = tuple(batch["image"].shape[1:])
    without = sorted({*folders} - {*training.classes}) if not of_folders else []
    return Data(
        kind="images",
        source=source,
        train_split=splits[0],
        evaluation_split=splits[1],
        training=training,
        evaluation=evaluation,
        inputs="image",
        shape=shape,
        labels="label",
        classes=training.num_classes,
        lines=(
            f"{len(training.classes)} classes: {_few(training.classes)}",
            f"images of {shape[0]}x{shape[1]} pixels, {'grey' if shape[2] == 1 else 'colour'}{note}",
            *([unread] if others else []),
            *([f"left out, as folders without images of their own: {_few(without)}"] if without else []),
        ),
    )


def table(path: Path, label: str = "") -> Data:
    """Looks at a CSV, TSV or Parquet file; `label` is the column to predict, "" the last one. Raises as the source."""
    frame = specs.resolve({"target": f"{_SOURCES}.table:read"}, field="--table")(str(path))
    label = label or str(frame.columns[-1])
    ignored = specs.resolve({"target": f"{_SOURCES}.table:names_of_rows"}, field="--table")(frame, label)
    source = {"target": f"{_SOURCES}:table", "path": str(path), "label": label}
    source |= {"ignore": ignored} if ignored else {}
    training, evaluation = (specs.build(source, split, field="--table") for split in ("train", "test"))
    batch = _first(training, 10_000)
    described = {name: column for name, column in training.columns.items() if column["role"] == "input"}
    numbers = [name for name, column in described.items() if column["kind"] == "number"]
    categories = [name for name in described if name not in numbers]
    return _of_arrays(
        "table",
        source,
        training,
        evaluation,
        batch,
        *([f"columns of numbers: {_few(numbers)}"] if numbers else []),
        *([f"columns of categories: {_few(categories)}"] if categories else []),
        *([f"left out, as names or numbers of rows: {_few(source['ignore'])}"] if ignored else []),
        label=f"the column {label!r}",
    )


def arrays(path: Path) -> Data:
    """Looks at an .npz file; raises as the source, or ValueError if its arrays cannot be used."""
    source = {"target": f"{_SOURCES}:npz", "path": str(path)}
    splits = ("train", "test")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            names = [name.removesuffix(".npy") for name in file.namelist()]
        of_names = _splits([name.rpartition("_")[2] for name in names if "_" in name])
        splits = of_names or splits
        if not of_names:
            source["keys"] = _keys(path, names)
    training, evaluation = (specs.build(source, split, field="--arrays") for split in splits)
    batch = _first(training, 10_000)
    parts = [f"{name} {value.dtype.name} {tuple(value.shape[1:])}" for name, value in batch.items()]
    labels = next((name for name in ("label", "targets") if name in batch), None)
    if labels is None or len(batch) < 2:
        raise ValueError(
            f"--arrays={path}: which array is predicted is not known. Name the arrays x and y, or image and label. It "
            f"has: {', '.join(batch)}."
        )
    shape = batch["image"].shape[1:].as_list() if "image" in batch else []
    if len(shape) == 3 and shape[0] in (1, 3) and shape[2] > 4:
        raise ValueError(
            f"--arrays={path}: images must be [examples, height, width, channels]. Received: "
            f"{[len(training), *shape]}. Move the channels to the end: np.moveaxis(x, 1, -1)."
        )
    data = _of_arrays("arrays", source, training, evaluation, batch, f"arrays: {_few(parts)}", label=labels)
    return dataclasses.replace(data, train_split=splits[0], evaluation_split=splits[1])


def _keys(path: Path, names: list[str]) -> dict[str, str]:
    """Returns {feature: array} of a file without splits; raises ValueError if the inputs or labels are not known."""
    inputs, labels = (
        next((name for name in names if name.lower() in known), None)
        for known in (("x", "data", "image", "images", "inputs", "features"), ("y", "label", "labels", "targets"))
    )
    if inputs is None or labels is None:
        raise ValueError(
            f"--arrays={path}: which array is predicted is not known. Name the arrays x and y, or image and label. It "
            f"has: {', '.join(names)}."
        )
    with np.load(path, allow_pickle=False) as file:
        x, y = file[inputs], file[labels]
    classes = y.dtype.kind in "biuUS" and y.ndim <= 2
    return {"image" if x.ndim in (3, 4) else "inputs": inputs, "label" if classes else "targets": labels}


def text(path: Path) -> Data:
    """Looks at a text file; raises as the source."""
    source = {"target": f"{_SOURCES}:text", "path": str(path), "length": 64}
    training, evaluation = (specs.build(source, split, field="--text") for split in ("train", "test"))
    return Data(
        kind="text",
        source=source,
        training=training,
        evaluation=evaluation,
        inputs="inputs",
        shape=(64,),
        labels="targets",
        classes=training.num_classes,
        lines=(f"{training.num_classes} different characters, in pieces of 64",),
    )


def _splits(names: Iterable[str]) -> tuple[str, str] | None:
    """Returns the splits to train and to evaluate on, of data with splits of these names; None: none is "train"."""
    if "train" not in names:
        return None
    others = [name for name in _EVALUATION if name in names]
    return ("train", others[0]) if others else ("train[:80%]", "train[80%:]")


def _of_arrays(
    kind: str, source: dict[str, Any], training: Any, evaluation: Any, batch: dict[str, Any], *lines: str, label: str
) -> Data:
    """Returns the description of data in memory, with one array of inputs and one of labels or targets."""
    labels = "label" if "label" in batch else "targets"
    inputs = next(name for name in ("image", "inputs", *batch) if name in batch and name != labels)
    scale, targets = (0.0, 1.0), 1
    if labels == "targets":
        values = batch["targets"].numpy().astype(float)
        if not np.isfinite(values).all():
            raise ValueError(f"{label} has values that are no finite numbers: remove these examples.")
        targets = values.shape[-1] if values.ndim > 1 else 1
        scale = (float(values.mean()), float(values.std()) or 1.0)
        found = f"{label} is a number, {values.min():.4g} to {values.max():.4g}"
    elif training.num_classes > (examples := len(training) + len(evaluation)):
        raise ValueError(
            f"{label} has {training.num_classes:,} classes of {examples:,} examples: labels are numbers of classes, "
            "from 0. If it is a number, store it as a float."
        )
    else:
        names = training.classes or [str(number) for number in range(training.num_classes)]
        found = f"{label} has {training.num_classes} classes: {_few(names)}"
    return Data(
        kind=kind,
        source=source,
        training=training,
        evaluation=evaluation,
        inputs=inputs,
        shape=tuple(batch[inputs].shape[1:]),
        labels=labels,
        classes=training.num_classes if labels == "label" else None,
        scale=scale,
        targets=targets,
        lines=(*lines, found),
    )


def _first(source: Any, count: int = 1) -> dict[str, Any]:
    import tensorflow as tf

    with tf.device("CPU:0"):
        return source.read(tf.range(min(count, len(source)), dtype=tf.int64))


def _image_form(files: list[Path]) -> tuple[list[int] | None, int, str]:
    """Returns the size that images must be scaled to, None if they are alike and small; channels; and a remark."""
    from PIL import Image

    sizes, modes = [], collections.Counter()
    for file in files:
        try:
            with Image.open(file) as image:
                sizes.append((image.height, image.width))
                modes[image.mode] += 1
        except (OSError, Image.DecompressionBombError):
            raise ValueError(f"--images: {str(file)!r} cannot be read as an image: repair or remove it.") from None
    # `image_folder` reads BMP and GIF files as colour images only.
    grey = set(modes) <= {"L", "1", "LA"} and not any(file.suffix.lower() in (".bmp", ".gif") for file in files)
    channels = 1 if grey else 3
    if len(set(sizes)) == 1 and max(sizes[0]) <= _LARGEST:
        return None, channels, ""
    sides = [statistics.median(side) for side in zip(*sizes, strict=True)]
    factor = min(1.0, _LARGEST / max(sides))
    size = [max(8, 8 * round(side * factor / 8)) for side in sides]
    largest = max(sizes, key=lambda one: one[0] * one[1])
    return size, channels, f", scaled from up to {largest[0]}x{largest[1]}"
