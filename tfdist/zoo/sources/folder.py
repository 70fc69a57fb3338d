"""Image files in class folders: PATH/SPLIT/CLASS/*.jpg, as `tfds.ImageFolder`, or PATH/CLASS/*.jpg without splits."""

import collections
import copy
import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdist.config import paths
from tfdist.data import cache, read_ahead, stream
from tfdist.zoo import splits
from tfdist.zoo.sources.files import decoding, from_disk

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
_LAYOUT = "The expected layout is PATH/SPLIT/CLASS/NAME.jpg or PATH/CLASS/NAME.jpg (" + ", ".join(SUFFIXES) + ")."
# Images decoded by one call when the whole source is read.
CHUNK_SIZE = 512


class image_folder:
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
        memory_limit_mb: if the decoded images need at most this many MiB, they are decoded once and kept in host
            memory; otherwise, and with 0, they are read from disk batch by batch.
        classes: the class folders to use, in the order of their labels; empty: all folders of the split. A run
            requires the same classes in both of its splits.
        test_fraction: between 0 and 1, without folders of splits: the part of each class that is "test".
        encoded: read the files and do not decode them: "image" is string [n], images of any size for
            `tfdist.zoo.inception:image`, which decodes only what it crops.

    A source of {"image": uint8 [n, height, width, channels], "label": int64 [n]}.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the split does not exist, a class is missing in a split or has no images, or the first image is
            damaged. Other damaged images are detected when they are read, and named by `verify`.
    """

    def __init__(
        self,
        split: str,
        *,
        path: str,
        size: Sequence[int] | None = None,
        channels: int = 3,
        memory_limit_mb: float = 2048,
        classes: Sequence[str] = (),
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
        self._root = os.path.abspath(path)
        name = f"image_folder {path!r}"
        if not os.path.isdir(path):
            raise FileNotFoundError(f"{name}: there is no folder {self._root!r}. {_LAYOUT}")
        by_ratio = _has_class_folders_only(path, split.partition("[")[0])
        part = splits.split_name(split, splits.BY_RATIO, source=name) if by_ratio else _split_folder(split, path, name)
        self._folder = self._root if by_ratio else os.path.join(self._root, part)
        found = [label for label in _folders(self._folder) if not by_ratio or _has_images(self._folder, label)]
        self.classes = list(classes) or found
        _check_classes(self.classes, part, found, name=name)
        self.num_classes = len(self.classes)

        files = [_image_names(os.path.join(self._folder, label)) for label in self.classes]
        if by_ratio:
            files = [_part_of_class(names, part, test_fraction) for names in files]
        labels = np.repeat(np.arange(self.num_classes), [len(names) for names in files])
        self._part = splits.resolve(split, {part: len(labels)}, source=name)
        # Sorted by class, "train[:90%]" would lack the last classes. RandomState is stable across NumPy versions.
        order = np.random.RandomState(0).permutation(len(labels))[self._part.start : self._part.stop]
        self._names = np.concatenate(files)[order]
        self._labels = labels[order].astype(np.int64)
        names = self._names if channels == 1 else ()  # A folder may have millions.
        if colour := [row for row, file in enumerate(names) if file.lower().endswith((b".bmp", b".gif"))]:
            raise ValueError(f"{name}: channels=1 needs JPEG or PNG files. Received: {self._file(colour[0])!r}")

        self._size = tuple(size or decoding.image_size(self._file(0)))
        self._any_size, self._encoded = encoded or size is not None, encoded
        self._shape, self.channels = (*self._size, channels), channels
        in_memory = len(self) * int(np.prod(self._shape)) <= memory_limit_mb * 2**20
        self._in_memory = in_memory and not encoded
        names = {"name": self._names, "label": self._labels}
        self._memory = cache.InMemoryArrays(self._load_images if self._in_memory else lambda: names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        place = "in memory" if self._in_memory else "read from disk"
        shape = "any size, encoded" if self._encoded else "x".join(map(str, self._shape))
        return f"image_folder {self._root!r}, {self._part.name}[{self._part.start}:{self._part.stop}]: " + (
            f"{len(self)} images of {shape}, {self.num_classes} classes, {place}"
        )

    @property
    def names(self) -> list[str]:
        """The file of each example."""
        return [self._file(row) for row in range(len(self))]

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": uint8 [n, h, w, c], "label": int64 [n]}.

        With `encoded`, "image" is string [n].
        """
        batch = self._memory.gather(ids)
        if self._in_memory:
            return batch
        paths = self._paths(batch["name"], batch["label"])
        if self._encoded:
            images = decoding.decode_each(tf.io.read_file, paths, tf.TensorSpec([], tf.string))
        else:
            images = self._decode(paths)
        return {"image": images, "label": batch["label"]}

    def arrays_of_part(self, examples: range) -> cache.InMemoryArrays | None:
        """Loads these examples to arrays of their own; None: they are read from files."""
        part, rows = copy.copy(self), slice(examples.start, examples.stop, examples.step)
        part._names, part._labels = self._names[rows], self._labels[rows]
        return cache.InMemoryArrays(part._load_images) if self._in_memory else None

    def verify(self) -> None:
        """Decodes all images; raises ValueError, which names the first that cannot be decoded, or has another size."""
        decode = tf.function(self._decode, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        with tf.device("CPU:0"):
            for start in range(0, len(self), CHUNK_SIZE):
                chunk = slice(start, start + CHUNK_SIZE)
                paths = self._paths(self._names[chunk], self._labels[chunk])
                try:
                    decode(paths)
                except tf.errors.OpError:
                    self._find_damage(start, paths)

    def fingerprint(self) -> str:
        """Returns a hash of the names and labels of the files, in order."""
        digest = hashlib.sha256(b"\0".join(self._names.tolist()) + self._labels.tobytes())
        digest.update("/".join(self.classes).encode(errors="surrogateescape"))
        return digest.hexdigest()[:16]

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files, or of 10,000 of them."""
        return from_disk.fingerprint(len(self), self._file)

    def _find_damage(self, start: int, paths: tf.Tensor) -> None:
        for example, path in enumerate(paths, start):
            try:
                image = decoding.decode_file(path, self._shape[-1])
            except tf.errors.OpError as error:
                raise ValueError(
                    f"The image {self._file(example)!r} cannot be read: {from_disk.reason(error)} Repair or remove it."
                ) from None
            if not self._any_size and image.shape[:2] != self._size:
                raise ValueError(
                    f"The image {self._file(example)!r} has {image.shape[0]}x{image.shape[1]} pixels, but "
                    f"{self._file(0)!r} has {self._size[0]}x{self._size[1]}: give image_folder a size, "
                    "size=(height, width)."
                )

    def _file(self, example: int) -> str:
        label = self.classes[self._labels[example]]
        return os.path.join(self._folder, label, os.fsdecode(self._names[example]))

    def _paths(self, names: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        folders = [os.path.join(self._folder, label, "") for label in self.classes]
        return tf.strings.join([tf.gather([os.fsencode(folder) for folder in folders], labels), names])

    def _load_images(self) -> dict[str, np.ndarray]:
        chunks = tf.data.Dataset.from_tensor_slices(self._paths(self._names, self._labels)).batch(CHUNK_SIZE)
        decode = tf.autograph.experimental.do_not_convert(lambda paths: {"image": self._decode(paths)})
        chunks = chunks.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
        with stream.name_damaged_example(self):
            rows = read_ahead.without_autotuning(chunks).as_numpy_iterator()
            return {**cache.collect(rows, len(self)), "label": self._labels}

    def _decode(self, paths: tf.Tensor) -> tf.Tensor:
        def decode(path: tf.Tensor) -> tf.Tensor:
            image = decoding.decode_file(path, self._shape[-1])
            if self._any_size:
                image = decoding.scale(image, self._size)
            return tf.ensure_shape(image, self._shape)

        return decoding.decode_each(decode, paths, tf.TensorSpec(self._shape, tf.uint8))


def images_below(path: str) -> tuple[list[pathlib.Path], collections.Counter]:
    """Returns the images in `path` and in the folders below, sorted, and how many other files have each suffix.

    Links to folders are followed; hidden files and folders are left out.
    """
    files = [pathlib.Path(entry.path) for entry in _files_below(path, ())]
    others = collections.Counter(file.suffix.lower() or "no suffix" for file in files)
    for suffix in SUFFIXES:
        del others[suffix]
    return sorted(file for file in files if file.suffix.lower() in SUFFIXES), others


def _files_below(path: str, above: tuple[str, ...]) -> Iterator[os.DirEntry]:
    """Yields the files; `above`: the folders in which `path` is. A link to one of them is not followed."""
    above = (*above, os.path.realpath(path))
    for entry in os.scandir(path):
        if entry.name.startswith("."):
            continue
        if entry.is_file():
            yield entry
        elif entry.is_dir() and os.path.realpath(entry.path) not in above:
            yield from _files_below(entry.path, above)


def _folders(path: str) -> list[str]:
    return sorted(entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith("."))


def _has_class_folders_only(path: str, split: str) -> bool:
    """Returns whether the folders in `path` are those of classes: they contain images, and `split` no class folders."""
    inside = os.path.join(path, split)
    if os.path.isdir(inside) and (_folders(inside) or split not in splits.BY_RATIO):
        return False
    return any(_has_images(path, folder) for folder in _folders(path))


def _has_images(path: str, folder: str) -> bool:
    return any(_is_image(entry) for entry in os.scandir(os.path.join(path, folder)))


def _is_image(entry: os.DirEntry) -> bool:
    suffix = pathlib.PurePath(entry.name).suffix.lower()
    return suffix in SUFFIXES and not entry.name.startswith(".") and entry.is_file()


def _split_folder(split: str, path: str, name: str) -> str:
    """Returns the folder that `split` names; raises a ValueError that says how one split is divided."""
    parts = _folders(path)
    try:
        return splits.split_name(split, parts, source=name)
    except ValueError as error:
        filled = [part for part in parts if _folders(os.path.join(path, part))]
        if len(filled) != 1 or "[" in split:
            raise ValueError(f"{error} {_LAYOUT}") from None
        raise ValueError(
            f'{error} To divide {filled[0]!r}, set config.data.train_split="{filled[0]}[:80%]" and '
            f'config.data.evaluation_split="{filled[0]}[80%:]".'
        ) from None


def _part_of_class(names: np.ndarray, part: str, test_fraction: float) -> np.ndarray:
    """Returns the images of a class that are in the split `part`: by a hash, so that most stay there if some are added.

    A class of two or more images has at least one in each split.
    """
    ordered = sorted(names.tolist(), key=lambda one: hashlib.sha256(one).digest())
    tests = min(max(1, round(test_fraction * len(ordered))), len(ordered) - 1)
    chosen = {"train": ordered[tests:], "test": ordered[:tests], "all": ordered}[part]
    return np.array(sorted(chosen), names.dtype)


def _check_classes(classes: list[str], part: str, found: list[str], *, name: str) -> None:
    if not classes:
        raise ValueError(f"{name}: the split {part!r} has no class folders. {_LAYOUT}")
    if missing := sorted(set(classes) - set(found)):
        raise ValueError(
            f"{name}: the split {part!r} has no folder for the class {missing[0]!r}, which classes names. It has: "
            f"{', '.join(found) or 'none'}."
        )


def _image_names(folder: str) -> np.ndarray:
    """Returns the names of the images in `folder`, sorted, as an array of bytes [images]."""
    names = []
    others: collections.Counter = collections.Counter()
    for entry in os.scandir(folder):
        if _is_image(entry):
            names.append(os.fsencode(entry.name))
        elif not entry.name.startswith(".") and entry.is_file():
            others[pathlib.PurePath(entry.name).suffix.lower() or "no suffix"] += 1
    if not names:
        found = ", ".join(f"{count} with {suffix}" for suffix, count in others.items()) or "no files"
        raise ValueError(f"image_folder: no images in {os.path.abspath(folder)!r}, but {found}. {_LAYOUT}")
    return np.array(sorted(names))
