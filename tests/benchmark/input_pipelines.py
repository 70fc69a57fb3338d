"""Input pipelines without a model: tfdist's, and the classic ones of the tutorials, on made images in several forms.

"small" images have 32x32 pixels. "large" ones have about 500x400, and the spectrum of photos, amplitudes that fall with
frequency, so that the size of a JPEG and the time to decode it are those of one.
"""

import functools
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.benchmark import baselines
from tfdist.config import specs
from tfdist.data import stream
from tfdist.zoo import inception

BATCHES = {"small": 128, "large": 64}
SHAPE, PAD, COUNT = (32, 32, 3), 4, 8_000
SIZE = 224
PREPARE = {
    "small": {"target": "tfdist.zoo.prepare:image", "pad": PAD, "flip": True},
    "large": {"target": "tfdist.zoo.inception:image", "size": SIZE},
}
_CLASSES, _FILES, _QUALITY = 10, 8, 90


def write_small(folder: Path) -> None:
    """Writes small images to `folder`, in memory's form and as JPEGs."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (COUNT, 8, 8, 3), np.uint8).repeat(4, axis=1).repeat(4, axis=2)
    np.savez(folder / "images.npz", x_train=images, y_train=np.arange(COUNT) % _CLASSES)
    _write_forms(folder, (tf.io.encode_jpeg(image).numpy() for image in images), SHAPE)


def write_large(folder: Path, count: int) -> None:
    """Writes `count` large images to `folder`, as JPEGs."""
    _write_forms(folder, _photos(count), (None, None, 3))


def _photos(count: int) -> Iterator[bytes]:
    from PIL import Image

    generator = np.random.default_rng(0)
    tall, wide = 560, 680
    fields = [
        (_field(generator, tall, wide, 1.4), np.stack([_field(generator, tall, wide, 2.0) for _ in range(3)], axis=-1))
        for _ in range(6)
    ]
    for _ in range(count):
        height, width = int(generator.integers(360, 441)), int(generator.integers(450, 551))
        pixels = np.zeros((height, width, 3))
        for weight in (0.8, 0.6):
            grey, colour = fields[generator.integers(len(fields))]
            top, left = generator.integers(0, tall - height + 1), generator.integers(0, wide - width + 1)
            place = np.s_[top : top + height, left : left + width]
            pixels += weight * (45.0 * grey[place][..., np.newaxis] + 18.0 * colour[place])
        file = io.BytesIO()
        Image.fromarray(np.clip(pixels + 128.0, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
        yield file.getvalue()


def _field(generator: np.random.Generator, height: int, width: int, exponent: float) -> np.ndarray:
    """Returns a random image of standard deviation 1 whose amplitudes fall as frequency ** -exponent."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    phases = generator.normal(size=(2, *frequency.shape))
    field = np.fft.irfft2((phases[0] + 1j * phases[1]) * frequency**-exponent, s=(height, width))
    return field / field.std()


def _write_forms(folder: Path, contents: Iterator[bytes], shape: tuple[int | None, ...]) -> None:
    """Writes JPEGs as files, TFRecord and ArrayRecord."""
    import tensorflow_datasets as tfds

    paths = []
    for number, content in enumerate(contents):
        path = folder / "files" / "train" / str(number % _CLASSES) / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        paths.append(path)
    (folder / "tfrecord").mkdir()
    for number in range(_FILES):
        with tf.io.TFRecordWriter(str(folder / "tfrecord" / f"train-{number:05d}-of-{_FILES:05d}")) as writer:
            for path in paths[number::_FILES]:
                image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[path.read_bytes()]))
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[1 + int(path.parent.name)]))
                features = tf.train.Features(feature={"image/encoded": image, "image/class/label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())
    features = {"image": tfds.features.Image(shape=shape, encoding_format="jpeg")}
    features["label"] = tfds.features.ClassLabel(num_classes=_CLASSES)
    tfds.dataset_builders.store_as_tfds_dataset(
        name="made",
        version="1.0.0",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": [(n, {"image": str(p), "label": int(p.parent.name)}) for n, p in enumerate(paths)]},
        data_dir=folder / "array_record",
        file_format="array_record",
        disable_shuffling=True,
    )


def _source(images: str, form: str, folder: Path) -> dict[str, Any]:
    path, encoded = str(folder / form), images == "large"
    if form == "memory":
        return {"target": "tfdist.zoo.sources:npz", "path": str(folder / "images.npz")}
    if form == "files":
        more = {"encoded": True} if encoded else {"memory_limit_mb": 0}
        return {"target": "tfdist.zoo.sources:image_folder", "path": path, **more}
    if form == "tfrecord":
        return {"target": "tfdist.configs.networks.imagenet:imagenet", "path": path, "num_classes": _CLASSES}
    more = {"data_dir": path, "features": {"image": "image", "label": "label"}, "encoded": encoded}
    return {"target": "tfdist.zoo.sources:tfds", "name": "made", "memory_limit_mb": 0, **more}


def tfdist(job: dict[str, Any], folder: Path) -> dict[str, baselines.Runner]:
    """The batches of one worker among `job["workers"]`, from the form `job["form"]` of the images `job["images"]`."""
    images = job["images"]
    dataset = stream.training(
        specs.build(_source(images, job["form"], folder), "train", field="source"),
        specs.partial(PREPARE[images], field="prepare", positional=2, training=True),
        stream.ReplicaShard(num_replicas=job["workers"]),
        global_batch=BATCHES[images],
        seed=0,
        shuffle=True,
    )
    options = tf.data.Options()
    options.autotune.enabled = False  # As in a run: see `cluster/distributed_dataset.py`.
    return _cases(lambda steps: dataset(0, steps).take(steps).with_options(options), whole=images == "large")


def classic(job: dict[str, Any], folder: Path) -> dict[str, baselines.Runner]:
    """tf.data as tutorials and TensorFlow's ResNet use it: shuffle, map, batch, prefetch; all of the global batch."""
    images, form = job["images"], job["form"]
    examples = {"memory": _from_memory, "tfrecord": _from_records, "files": _from_files}[form](folder)
    prepare = _crop if images == "large" else functools.partial(_augment, decode=form != "memory")
    dataset = examples.map(prepare, num_parallel_calls=tf.data.AUTOTUNE).repeat()
    dataset = dataset.batch(BATCHES[images], drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    return _cases(dataset.take, whole=images == "large")


def _cases(make: Callable[[int], tf.data.Dataset], *, whole: bool) -> dict[str, baselines.Runner]:
    """`whole`: each turn reads a new iterator to its end, so that no batch is read ahead before or after it.

    With autotuning, the end of an iterator takes up to a second: the case "end" is for it.
    """
    iterators: list[Any] = []

    @tf.function
    def take(iterator: Any, count: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([])
        for _ in tf.range(count):
            total += tf.reduce_sum([tf.cast(tf.size(value), tf.float32) for value in tf.nest.flatten(next(iterator))])
        return total

    def step(steps: int) -> None:
        if whole or not iterators:
            iterators.append(iter(make(steps if whole else 1_000_000)))
        take(iterators[-1], tf.constant(steps)).numpy()

    return {"step": step, "end": lambda steps: iterators.clear()}


def _from_memory(folder: Path) -> tf.data.Dataset:
    with np.load(folder / "images.npz") as file:
        return tf.data.Dataset.from_tensor_slices((file["x_train"], file["y_train"])).shuffle(COUNT)


def _from_records(folder: Path) -> tf.data.Dataset:
    kinds = {"image/encoded": tf.string, "image/class/label": tf.int64}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}

    def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parsed = tf.io.parse_single_example(record, features)
        return parsed["image/encoded"], parsed["image/class/label"] - 1

    files = tf.data.Dataset.list_files(str(folder / "tfrecord" / "train-*-of-*"), shuffle=True)
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=_FILES, num_parallel_calls=tf.data.AUTOTUNE)
    return records.shuffle(10_000).map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _from_files(folder: Path) -> tf.data.Dataset:
    def read(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.io.read_file(path), tf.strings.to_number(tf.strings.split(path, "/")[-2], tf.int64)

    files = tf.data.Dataset.list_files(str(folder / "files" / "train" / "*" / "*.jpg"), shuffle=True)
    return files.map(read, num_parallel_calls=tf.data.AUTOTUNE)


def _augment(image: tf.Tensor, label: tf.Tensor, *, decode: bool) -> tuple[tf.Tensor, tf.Tensor]:
    if decode:
        image = tf.ensure_shape(tf.io.decode_jpeg(image, channels=3), SHAPE)
    return baselines.augment(image, label, pad=PAD)


def _crop(content: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(content),
        bounding_boxes=tf.zeros([1, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.stack([begin[0], begin[1], size[0], size[1]])
    pixels = tf.image.decode_and_crop_jpeg(content, window, channels=3)
    pixels = tf.image.random_flip_left_right(pixels)
    pixels = tf.ensure_shape(tf.image.resize(pixels, (SIZE, SIZE)), (SIZE, SIZE, 3))
    return (pixels / 255.0 - inception.MEAN) / inception.STD, label
