"""Image files in class folders: PATH/SPLIT/CLASS/*.jpg, as `tfds.ImageFolder`, or PATH/CLASS/*.jpg without splits."""

import collections
import hashlib
import os
import pathlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.data import cache
from tfdist.zoo import decoding, splits
from tfdist.zoo.sources.files import file_source

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_LAYOUT = "The expected layout is PATH/SPLIT/CLASS/NAME.jpg or PATH/CLASS/NAME.jpg (" + ", ".join(SUFFIXES) + ")."


class ImageFiles(file_source.FileSource):
    """Image files; see `image_folder`.

    Args:
        labels: int64 [files].
        shape: (height, width, channels), to which images are scaled; None: they are not decoded.
        scales: False: the images must have this size.
    """

    def __init__(
        self,
        name: str,
        part: splits.Slice,
        files: Sequence[str],
        labels: np.ndarray,
        shape: tuple[int, int, int] | None,
        *,
        scales: bool = True,
    ):
        more = "" if scales else " Images of several sizes need size=(height, width) in the source."
        super().__init__(name, part, files, f"Repair or remove it.{more}")
        self.labels, self._shape, self._scales = labels, shape, scales
        self._columns = cache.InMemoryArrays(
            lambda rows: {"file": np.array([*map(os.fsencode, files)]), "label": labels}, range(len(files))
        )

    def load(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], from the files."""
        columns = self._columns.gather(ids)
        signature = tf.TensorSpec([], tf.string) if self._shape is None else tf.TensorSpec(self._shape, tf.uint8)
        images = decoding.decode_each(self._load_one, columns["file"], signature)
        return {"image": images, "label": columns["label"]}

    def _load_one(self, path: tf.Tensor) -> tf.Tensor:
        content = tf.io.read_file(path)
        if self._shape is None:
            return content
        image = decoding.decode_image(content, self._shape[-1])
        return tf.ensure_shape(decoding.scale(image, self._shape[:2]) if self._scales else image, self._shape)

    def check(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the images; for encoded ones, their sizes after decoding."""
        images = self.load(ids)["image"]
        return decoding.num_values(images) if self._shape is None else images

    @property
    def names(self) -> Sequence[str]:
        """The file of each example."""
        return self.files

    def place(self, example: int) -> str:
        """Returns the file of an image, for messages."""
        return f"The image {self.files[example]!r}"


class image_folder(ImageFiles):
    """Images in folders: PATH/SPLIT/CLASS/NAME.jpg, the layout of `tfds.ImageFolder`, or PATH/CLASS/NAME.jpg.

    Without folders of splits, the splits are "train", "test" and "all": `test_fraction` of the images of each class,
    chosen by a hash of their names, are "test".

    Labels number the class folders in alphabetical order. Examples have a fixed shuffled order, which depends only on
    the file names, so that a slice of a split contains all classes. Only .jpg, .jpeg, .png, .bmp and .gif files
    (first frame) are read; other files, and hidden files and folders, are ignored. The orientation that a camera writes
    into a JPEG (EXIF) is not applied.

    Args:
        split: a folder in `path`, or one of the splits above, with or without a slice: "train[:90%]".
        path: the folder of the splits, or of the classes; variables are expanded.
        size: (height, width) to which images are scaled when read, bilinear with antialiasing; the aspect ratio is not
            preserved. None: all images must have the size of the first one.
        channels: 1 (grey; JPEG and PNG only) or 3 (colour).
        memory_limit_mb: if the decoded images need at most this many MiB, they are decoded once and kept in host
            memory; otherwise, and with 0, they are read from disk batch by batch.
        test_fraction: between 0 and 1, without folders of splits: the part of each class that is "test".
        encoded: read the files and do not decode them: "image" is string [n], images of any size for
            `tfdist.zoo.inception:image`, which decodes only what it crops.

    A source of {"image": uint8 [n, height, width, channels], "label": int64 [n]}.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the split does not exist, a class has no images, or the first image is damaged. Other damaged images
            are detected when they are read, and named by `verify`.
    """

    def __init__(
        self,
        split: str,
        *,
        path: str,
        size: Sequence[int] | None = None,
        channels: int = 3,
        memory_limit_mb: float = 2048,
        test_fraction: float = 0.2,
        encoded: bool = False,
    ):
        if size is not None and (np.shape(size) != (2,) or min(size) < 1):
            raise ValueError(f"image_folder: size must be (height, width) in pixels. Received: {size!r}")
        if channels not in (1, 3):
            raise ValueError(f"image_folder: channels must be 1 (grey) or 3 (colour). Received: {channels!r}")
        if not 0 < test_fraction < 1:
            raise ValueError(f"image_folder: test_fraction must be between 0 and 1. Received: {test_fraction!r}")
        if encoded and size is not None:
            raise ValueError("image_folder: encoded images are not scaled when read: leave out size, or encoded.")
        path = str(paths.local(path, "path"))
        root, name = os.path.abspath(path), f"image_folder {path!r}"
        if not os.path.isdir(path):
            raise FileNotFoundError(f"{name}: there is no folder {root!r}. {_LAYOUT}")
        by_ratio = _has_class_folders_only(path, split.partition("[")[0])
        part = splits.split_name(split, splits.BY_RATIO, source=name) if by_ratio else _split_folder(split, path, name)
        folder = root if by_ratio else os.path.join(root, part)
        self.classes = [one for one in _folders(folder) if not by_ratio or _has_images(os.path.join(folder, one))]
        if not self.classes:
            raise ValueError(f"{name}: the split {part!r} has no class folders. {_LAYOUT}")
        self.num_classes = len(self.classes)
        names = [_image_names(os.path.join(folder, label)) for label in self.classes]
        if by_ratio:
            names = [_part_of_class(one, part, test_fraction) for one in names]
        labels = np.repeat(np.arange(self.num_classes), [len(one) for one in names])
        chosen = splits.resolve(split, {part: len(labels)}, source=name)
        # Sorted by class, "train[:90%]" would lack the last classes. RandomState is stable across NumPy versions.
        order = np.random.RandomState(0).permutation(len(labels))[chosen.start : chosen.stop]
        labels, names = labels[order].astype(np.int64), np.concatenate(names)[order]
        folders = [os.path.join(folder, label, "") for label in self.classes]
        files = [folders[label] + os.fsdecode(one) for label, one in zip(labels, names, strict=True)]
        shape = None if encoded else (*(size or decoding.image_size(files[0])), channels)
        super().__init__(name, chosen, files, labels, shape, scales=encoded or size is not None)
        self.channels = channels
        if shape and len(self) * int(np.prod(shape)) <= memory_limit_mb * 2**20:
            self.keep_in_memory()

    def fingerprint(self) -> str:
        """Returns a hash of the names and labels of the files, in order."""
        names = b"\0".join(os.fsencode(os.path.basename(file)) for file in self.files)
        return file_source.digest(names, self.labels.tobytes(), os.fsencode("/".join(self.classes)))


def images_below(path: str) -> tuple[list[pathlib.Path], collections.Counter]:
    """Returns the images in `path` and in the folders below, sorted, and how many other files have each suffix.

    Links to folders are followed; hidden files and folders are left out.
    """
    images, others, seen = [], collections.Counter(), set()
    for folder, below, names in os.walk(path, followlinks=True):
        seen.add(os.path.realpath(folder))  # A link may lead to a folder above.
        known = [name for name in below if os.path.realpath(os.path.join(folder, name)) in seen]
        below[:] = [name for name in below if not name.startswith(".") and name not in known]
        for file in (pathlib.Path(folder, name) for name in names if not name.startswith(".")):
            suffix = file.suffix.lower() or "no suffix"
            images += [file] if suffix in SUFFIXES else []
            others[suffix] += suffix not in SUFFIXES
    return sorted(images), +others


def _visible(path: str) -> list[os.DirEntry]:
    return [entry for entry in os.scandir(path) if not entry.name.startswith(".")]


def _folders(path: str) -> list[str]:
    return sorted(entry.name for entry in _visible(path) if entry.is_dir())


def _is_image(entry: os.DirEntry) -> bool:
    return os.path.splitext(entry.name)[1].lower() in SUFFIXES and entry.is_file()


def _has_images(path: str) -> bool:
    return any(map(_is_image, _visible(path)))


def _has_class_folders_only(path: str, split: str) -> bool:
    """Returns whether the folders in `path` are those of classes, which contain images, and not those of splits.

    A folder with the name `split` is a split if it has folders in it, or if the name is none of `splits.BY_RATIO`.
    """
    inside = os.path.join(path, split)
    if os.path.isdir(inside) and (_folders(inside) or split not in splits.BY_RATIO):
        return False
    return any(_has_images(os.path.join(path, folder)) for folder in _folders(path))


def _split_folder(split: str, path: str, name: str) -> str:
    """Returns the folder that `split` names."""
    parts = _folders(path)
    try:
        return splits.split_name(split, parts, source=name)
    except ValueError as error:
        raise ValueError(f'{error} {_LAYOUT} If there is only one, use slices: "train[:80%]", "train[80%:]".') from None


def _part_of_class(names: np.ndarray, part: str, test_fraction: float) -> np.ndarray:
    """Returns the images of a class that are in the split `part`: by a hash, so that most stay there if some are added.

    A class of two or more images has at least one in each split.
    """
    ordered = sorted(names.tolist(), key=lambda one: hashlib.sha256(one).digest())
    tests = min(max(1, round(test_fraction * len(ordered))), len(ordered) - 1)
    chosen = {"train": ordered[tests:], "test": ordered[:tests], "all": ordered}[part]
    return np.array(sorted(chosen), names.dtype)


def _image_names(folder: str) -> np.ndarray:
    """Returns the names of the images in `folder`, sorted, as an array of bytes [images]."""
    entries = _visible(folder)
    names = [os.fsencode(entry.name) for entry in entries if _is_image(entry)]
    if not names:
        others = ", ".join(sorted(entry.name for entry in entries)[:3]) or "no files"
        raise ValueError(f"image_folder: no images in {os.path.abspath(folder)!r}, but {others}. {_LAYOUT}")
    return np.array(sorted(names))
