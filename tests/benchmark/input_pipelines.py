"""Input pipelines without a model: tfdist's, and the classic one with the same augmentation."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.benchmark import baselines
from tfdist.config import specs
from tfdist.data import stream

BATCH = 128
SHAPE = (32, 32, 3)
PAD = 4
NUM_IMAGES = 8_000
_CLASSES = 10


def tfdist(job: dict[str, Any], folder: Path) -> dict[str, baselines.Runner]:
    """The batches of one worker among `job["workers"]`, from the source `job["source"]`, as a step reads them."""
    write(job["source"], folder)
    prepare = {"target": "tfdist.zoo.prepare:image", "pad": PAD, "flip": True}
    dataset = stream.training(
        specs.build(_SOURCES[job["source"]](folder), "train", field="source"),
        specs.partial(prepare, field="prepare", positional=2, training=True),
        stream.ReplicaShard(num_replicas=job["workers"]),
        global_batch=BATCH,
        seed=0,
        shuffle=True,
    )
    return {"step": _runner(dataset(0, 1_000_000))}


def classic(job: dict[str, Any], folder: Path) -> dict[str, baselines.Runner]:
    """The pipeline of the tutorials on the same examples; it reads the global batch, whatever the number of workers."""
    write(job["source"], folder)
    dataset = _CLASSIC[job["source"]](folder)
    return {"step": _runner(dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE).repeat())}


def _runner(dataset: tf.data.Dataset) -> baselines.Runner:
    iterator = iter(dataset)

    @tf.function
    def take(count: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([])
        for _ in tf.range(count):
            total += tf.reduce_sum([tf.cast(tf.size(value), tf.float32) for value in tf.nest.flatten(next(iterator))])
        return total

    return lambda count: take(tf.constant(count)).numpy()


def write(source: str, folder: Path) -> None:
    """Generates the images that `source` reads, unless they exist."""
    if (folder / source).exists():
        return
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (NUM_IMAGES, 8, 8, 3), np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    labels = np.arange(NUM_IMAGES) % _CLASSES
    temporary = folder / f"{source}.writing"
    temporary.mkdir(exist_ok=True)
    _WRITERS[source](temporary, images, labels)
    temporary.rename(folder / source)


def _write_memory(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    np.savez(folder / "images.npz", x_train=images, y_train=labels)


def _write_files(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for label in range(_CLASSES):
        (folder / "train" / f"{label}").mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / "train" / f"{label}" / f"{number}.jpg").write_bytes(tf.io.encode_jpeg(image).numpy())


def _write_records(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=SHAPE, encoding_format="jpeg"),
            "label": tfds.features.ClassLabel(num_classes=_CLASSES),
        }
    )
    examples = [{"image": i, "label": int(n)} for i, n in zip(images, labels, strict=True)]
    for file_format in ("array_record", "tfrecord"):
        tfds.dataset_builders.store_as_tfds_dataset(
            name="synthetic",
            version="1.0.0",
            features=features,
            split_datasets={"train": list(enumerate(examples))},
            data_dir=folder / file_format,
            file_format=file_format,
            disable_shuffling=True,
        )


def _classic_memory(folder: Path) -> tf.data.Dataset:
    with np.load(folder / "memory" / "images.npz") as file:
        dataset = tf.data.Dataset.from_tensor_slices((file["x_train"], file["y_train"]))
    return _augmented(dataset.shuffle(NUM_IMAGES))


def _classic_files(folder: Path) -> tf.data.Dataset:
    def read(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.ensure_shape(image, SHAPE), tf.strings.to_number(tf.strings.split(path, "/")[-2], tf.int64)

    files = tf.data.Dataset.list_files(str(folder / "files" / "train" / "*" / "*.jpg"), shuffle=True)
    return _augmented(files.map(read, num_parallel_calls=tf.data.AUTOTUNE))


def _classic_records(folder: Path) -> tf.data.Dataset:
    import tensorflow_datasets as tfds

    builder = tfds.builder("synthetic", data_dir=folder / "records" / "tfrecord")
    # By default tfds keeps the decoded images of so small a dataset in memory after the first pass.
    dataset = builder.as_dataset(split="train", read_config=tfds.ReadConfig(try_autocache=False))
    return _augmented(dataset.map(lambda example: (example["image"], example["label"])).shuffle(10_000))


def _augmented(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(functools.partial(baselines.augment, pad=PAD), num_parallel_calls=tf.data.AUTOTUNE)


_WRITERS: dict[str, Callable[[Path, np.ndarray, np.ndarray], None]] = {
    "memory": _write_memory,
    "files": _write_files,
    "records": _write_records,
}
_CLASSIC = {"memory": _classic_memory, "files": _classic_files, "records": _classic_records}
_SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "memory": lambda folder: {"target": "tfdist.zoo.sources:npz", "path": str(folder / "memory" / "images.npz")},
    "files": lambda folder: {
        "target": "tfdist.zoo.sources:image_folder",
        "path": str(folder / "files"),
        "memory_limit_mb": 0,
    },
    "records": lambda folder: {
        "target": "tfdist.zoo.sources:tfds",
        "name": "synthetic",
        "data_dir": str(folder / "records" / "array_record"),
        "features": {"image": "image", "label": "label"},
        "memory_limit_mb": 0,
    },
}
