"""Files to predict as a source of examples: images, .npy and .npz arrays, tables, lines of text."""

import csv
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.config import specs
from tfdist.tools.prepare_data import resized_files
from tfdist.tools.saved_runs import weights
from tfdist.tools.saved_runs.saved import SavedRun

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
ARRAYS, TABLES, TEXTS = (".npz", ".npy"), (".csv", ".tsv", ".parquet", ".pq"), (".txt",)
_PARALLEL_IMAGES = 16
# Their modules find, read and name the examples of files as in the training.
_SOURCES = "tfdist.zoo.sources"


class ImageFiles:
    """Image files of any size, scaled to one size. `labels`: int64 [n], -1 where the folder is no class; or None."""

    def __init__(self, files: Sequence[Path], shape: tuple[int, int, int], dtype: tf.DType, classes: Sequence[str]):
        self.names, self._paths = [str(file) for file in files], [os.fsencode(file) for file in files]
        self._shape, self._dtype = shape, dtype
        numbers = {name: number for number, name in enumerate(classes)}
        labels = np.array([numbers.get(file.parent.name, -1) for file in files], np.int64)
        self.labels = labels if (labels >= 0).any() else None

    def __len__(self) -> int:
        return len(self.names)

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": [n, h, w, c], "label": int64 [n]}."""
        images = tf.map_fn(
            lambda path: self._decode(tf.io.read_file(path)),
            tf.gather(self._paths, ids),
            fn_output_signature=tf.TensorSpec(self._shape, tf.uint8),
            parallel_iterations=_PARALLEL_IMAGES,
        )
        return {"image": tf.cast(images, self._dtype), "label": self._labels_of(ids)}

    def _labels_of(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(ids) if self.labels is None else tf.maximum(tf.gather(self.labels, ids), 0)

    def find_damage(self) -> str:
        """Returns a sentence about the first file that cannot be decoded; "": there is none."""
        for name, path in zip(self.names, self._paths, strict=True):
            try:
                self._decode(tf.io.read_file(path))
            except tf.errors.OpError as error:
                return _cannot_be_read(name, error)
        return ""

    def _decode(self, content: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_image(content, channels=self._shape[-1], expand_animations=False)
        image = tf.ensure_shape(image, [None, None, self._shape[-1]])
        fits = tf.reduce_all(tf.equal(tf.shape(image)[:2], self._shape[:2]))
        image = tf.cond(fits, lambda: image, lambda: resized_files.resize(image, self._shape[:2]))
        return tf.ensure_shape(image, self._shape)


class EncodedFiles(ImageFiles):
    """Image files as they are, for a run that prepares encoded images; see `ImageFiles`."""

    def __init__(self, files: Sequence[Path], classes: Sequence[str]):
        super().__init__(files, (1, 1, 3), tf.uint8, classes)  # The size to which `find_damage` scales.

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {"image": string [n], "label": int64 [n]}."""
        paths = tf.gather(self._paths, ids)
        images = tf.map_fn(tf.io.read_file, paths, fn_output_signature=tf.TensorSpec([], tf.string))
        return {"image": tf.ensure_shape(images, ids.shape), "label": self._labels_of(ids)}


class Rows:
    """Rows of an array; see `ImageFiles`."""

    def __init__(
        self, columns: Mapping[str, np.ndarray], labels: np.ndarray | None = None, names: Sequence[str] | None = None
    ):
        self._columns, self.labels = dict(columns), labels
        self.names = list(names or map(str, range(len(next(iter(columns.values()))))))

    def __len__(self) -> int:
        return len(self.names)

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the rows `ids`, int64 [n], with "label", int64 [n]."""
        labels = tf.zeros_like(ids) if self.labels is None else tf.gather(self.labels, ids)
        return {"label": labels} | {name: tf.gather(values, ids) for name, values in self._columns.items()}

    def find_damage(self) -> str:
        """Returns "": rows are in memory."""
        return ""


def size_of(path: Path) -> tuple[int, int]:
    """Returns (height, width) of an image file; raises ValueError, which names it, if it cannot be decoded."""
    try:
        image = tf.io.decode_image(tf.io.read_file(os.fsencode(path)), expand_animations=False)
    except tf.errors.OpError as error:
        raise ValueError(_cannot_be_read(path, error)) from None
    return int(image.shape[0]), int(image.shape[1])


def _cannot_be_read(file: Path | str, error: tf.errors.OpError) -> str:
    why = error.message.splitlines()[0].rpartition("}} ")[2].partition(" [Op:")[0]  # Without names of ops.
    return f"{file} cannot be read: {why[:200]}"


def find(words: Sequence[str]) -> tuple[str, list[Path]]:
    """Returns the kind of the files that `words` name, "images", "arrays", "table" or "text", and the files.

    Of folders, images are taken, those in folders below too. Raises ValueError if there are none, or several kinds.
    """
    found: list[Path] = []
    for word in words:
        path = Path(word).expanduser()
        if path.is_dir():
            inside, _ = specs.resolve({"target": f"{_SOURCES}.folder:images_below"}, field="images")(str(path))
            if not inside:
                raise ValueError(f"{word} is a folder without images ({', '.join(IMAGES)}).")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ValueError(f"There is no file or folder {os.path.abspath(path)}.")
    suffixes = {path.suffix.lower() for path in found}
    for kind, known in (("images", IMAGES), ("arrays", ARRAYS), ("table", TABLES), ("text", TEXTS)):
        if suffixes <= {*known}:
            if kind != "images" and len(found) > 1:
                raise ValueError(f"Give one file of this kind. Received: {', '.join(map(str, found[:3]))}")
            return kind, found
    raise ValueError(
        f"Files must be images ({', '.join(IMAGES)}), or one array ({', '.join(ARRAYS)}), or one table "
        f"({', '.join(TABLES)}), or one text ({', '.join(TEXTS)}). Received: {', '.join(sorted(suffixes))}"
    )


def read_array(path: Path, key: str, shape: Sequence[int | None] | None, name: str = "x") -> np.ndarray:
    """Returns the array of a .npy file, or that of a .npz file.

    That is the one named `key` or `name`, or the only one that fits `shape`: of an example, None where any size fits;
    None: not known. Raises ValueError if no array fits.
    """
    arrays = _load(path, key)
    known = tf.TensorShape(shape)
    fitting = {one: value for one, value in arrays.items() if known.is_compatible_with(value.shape[1:])}
    chosen = next((one for one in (key, name) if one in fitting), None) or (len(fitting) == 1 and next(iter(fitting)))
    if chosen:
        return fitting[chosen]
    shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items())
    wanted = f" [n, {', '.join('any' if size is None else str(size) for size in shape)}]" if shape else ""
    raise ValueError(f"{path} must have one array{wanted}, or name it {key!r}. It has: {shapes}")


def _load(path: Path, key: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file by name, or that of a .npy file as `key`."""
    try:
        loaded = np.load(path)
        return {key: loaded} if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).partition(". ")[0]
        raise ValueError(f"{path} is damaged, or holds no arrays of numbers: {reason}. Write it again.") from None


def read_arrays(path: Path, shapes: Mapping[str, Sequence[int | None]]) -> dict[str, np.ndarray]:
    """Returns the arrays of a .npz file by the names of a model's inputs.

    `shapes` are those of an example, None where any size fits. Raises ValueError if an array is missing or does not
    fit, or their lengths differ.
    """
    arrays = _load(path, "")
    arrays.pop("", None)
    fitting = {
        name: arrays[name]
        for name, shape in shapes.items()
        if name in arrays and tf.TensorShape(shape).is_compatible_with(arrays[name].shape[1:])
    }
    if len(fitting) < len(shapes) or len({len(value) for value in fitting.values()}) > 1:
        wanted = ", ".join(
            f"{name} [n, {', '.join('any' if size is None else str(size) for size in shape)}]"
            for name, shape in shapes.items()
        )
        found = ", ".join(f"{name} {list(value.shape)}" for name, value in arrays.items()) or "one array without a name"
        raise ValueError(
            f"{path} must be a .npz file with an array for each input of the model: {wanted}. It has: {found}"
        )
    return {name: value.astype(np.float32) if value.dtype == np.float64 else value for name, value in fitting.items()}


def read_lines(path: Path, characters: Sequence[str], length: int) -> tuple[np.ndarray, list[str]]:
    """Returns the end of each line of a text, as numbers of its characters, int32 [lines, length], and the lines.

    Empty lines are left out. Shorter ones are filled with spaces at their beginning, or with the first known character.
    `characters` are those of the training, in the order of their numbers. Raises ValueError for another character.
    """
    numbers = {character: number for number, character in enumerate(characters)}
    numbered = [
        (number, line)
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1)
        if line.strip()
    ]
    for number, line in numbered:
        unknown = sorted({*line} - {*characters})
        if unknown:
            raise ValueError(f"{path}, line {number}: the text of the training has no {''.join(unknown)!r}.")
    lines = [line for _, line in numbered]
    if not lines:
        raise ValueError(f"{path} has no lines.")
    fill = numbers.get(" ", 0)
    rows = [[fill] * (length - len(line)) + [numbers[each] for each in line[-length:]] for line in lines]
    return np.array(rows, np.int32), lines


def read_table(path: Path, width: int | None) -> tuple[np.ndarray, list[str]]:
    """Returns the numbers of a .csv or .tsv file, float32 [rows, columns], and the columns, which its first line names.

    Raises ValueError, which names the first field that is no number, or the first line of another length; or if there
    are not `width` columns, which the model needs in this order; None: not known.
    """
    if path.suffix.lower() not in (".csv", ".tsv"):
        raise ValueError(f"{path}: only a run that was trained on a table (data.json in its workdir) reads Parquet.")
    with open(path, newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        numbered = [(reader.line_num, line) for line in reader if line]  # Without empty lines.
    if not numbered:
        raise ValueError(f"{path} has no lines.")
    (_, header), *lines = numbered
    if width is not None and len(header) != width:
        raise ValueError(
            f"{path} has {len(header)} columns, and the model needs {width}: {', '.join(header[:8])}... Write a table "
            "with the columns of the training in their order, and without the label."
        )
    values = np.zeros((len(lines), len(header)), np.float32)
    for row, (number, line) in enumerate(lines):
        if len(line) != len(header):
            raise ValueError(f"{path}, line {number} has {len(line)} fields, and the header {len(header)}.")
        for column, text in enumerate(line):
            try:
                values[row, column] = float(text)
            except ValueError:
                raise ValueError(f"{path}, line {number}, column {header[column]!r}: {text!r} is no number.") from None
    return values, header


def open_examples(saved: SavedRun, model: keras.Model, words: Sequence[str]) -> Rows | ImageFiles:
    """Opens the files or folders that `words` name as a source, with `names`, `labels` and `find_damage()`.

    Raises ValueError if they do not fit the model.
    """
    kind, files = find(words)
    if weights.several(model):
        return Rows(read_arrays(files[0], {each.name: each.shape[1:] for each in model.inputs}))
    key, shape = saved.input_key(), weights.input_shape(model)
    if kind == "text":
        if not shape or len(shape) != 1 or not shape[0] or any(len(name) != 1 for name in saved.classes or ["no"]):
            raise ValueError(f"{saved.workdir} was not trained on a text file: give images, a .npz file or a table.")
        rows, lines = read_lines(files[0], saved.classes, shape[0])
        return Rows({key: rows}, names=lines)
    if kind == "arrays":
        stored = None if saved.config is not None else shape  # The run's preparation may change the shape.
        keys = saved.config and saved.config.data.source.get("keys")
        values = read_array(files[0], key, stored, (keys or {}).get(key, "x"))  # Named as in the training's file.
        # As the source `npz`: images without channels get an axis.
        grey = key == "image" and values.ndim == 3 and len(shape or ()) == 3
        return Rows({key: values[..., np.newaxis] if grey else values})
    if kind == "table" and saved.label_column:
        return open_table(saved, key, files[0])
    if kind == "table":
        width = shape[0] if shape is not None and len(shape) == 1 else None
        return Rows({key: read_table(files[0], width)[0]})
    data = saved.config and saved.config.data
    # Such a run prepares images of any size, which are encoded.
    encoded = data and str(data.prepare["target"]).endswith("inception:image") and not data.source.get("size")
    if encoded:
        return EncodedFiles(files, saved.classes)
    size = image_shape(saved, shape, files[0])
    dtype = tf.uint8 if saved.config is not None else tf.float32
    return ImageFiles(files, size, dtype, saved.classes)


def open_table(saved: SavedRun, key: str, path: Path) -> Rows:
    """Opens a table with the columns of the table of the training, with or without the label.

    Raises ValueError if a column is missing, or holds what it did not hold in the training.
    """
    columns, label = saved.about["columns"], saved.label_column
    read, encode, class_name = (
        specs.resolve({"target": f"{_SOURCES}.table:{name}"}, field="data.json")
        for name in ("read", "encode", "class_name")
    )
    # A text of digits is a number to pandas if there are no others in this file.
    frame = read(str(path), [name for name, each in columns.items() if each["kind"] == "category"])
    labels = None
    if columns[label]["kind"] == "class" and label in frame:
        numbers = {text: number for number, text in enumerate(columns[label]["values"])}
        labels = np.array([numbers.get(class_name(value), -1) for value in frame[label]], np.int64)
        labels = labels if (labels >= 0).any() else None
    return Rows({key: encode(frame, columns)}, labels)


def image_shape(saved: SavedRun, of_model: Sequence[int | None] | None, first: Path) -> tuple[int, int, int]:
    """Returns (height, width, channels) of an image as the source of the run returns it; raises ValueError if unknown.

    `of_model` is the shape of the model's input; the first file has the size of all if the run crops images of one
    size.
    """
    data = config_lib.Data() if saved.config is None else saved.config.data
    prepared = saved.about.get("prepared", {}).get(saved.input_key(), {}).get("shape") or of_model or ()
    cropped = size_of(first) if data.prepare.get("crop") else None
    size = data.source.get("size") or data.prepare.get("resize") or cropped or prepared[:2]
    if len(prepared) != 3 or len(size) != 2 or None in (*size, prepared[2]):
        raise ValueError(
            f"The model of {saved.workdir} takes examples of shape {list(prepared)}, and not images: give a .npz file "
            "or a table."
        )
    return int(size[0]), int(size[1]), int(data.source.get("channels", prepared[2]))
