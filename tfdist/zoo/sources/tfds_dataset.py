"""Datasets prepared by TensorFlow Datasets."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import cache, read_ahead, stream
from tfdist.zoo import splits
from tfdist.zoo.sources import tfds_builder
from tfdist.zoo.sources.files import decoding, from_disk, record_files
from tfdist.zoo.sources.files.record_files import ArrayRecords, RecordSpan

# Records decoded by one call when the whole source is read.
CHUNK_SIZE = 512
# Errors of TensorFlow and array_record for a damaged record.
_READ_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, IndexError)


class tfds:
    """Examples of a TensorFlow Datasets dataset, such as cifar10 or mnist.

    Nothing is downloaded unless `download` is True. The examples have the order of the prepared files.

    Args:
        split: a split of the dataset, with or without a slice: "train[:90%]".
        name: "cifar10", "cifar10:3.0.2", "dataset/config:version".
        data_dir: the directory of prepared datasets; None: that of tfds, ~/tensorflow_datasets or $TFDS_DATA_DIR.
        download: download the dataset and prepare it as ArrayRecord files, if it is not found.
        features: {entry of the batch: feature of the dataset}, such as {"image": "image", "label": "coarse_label"}.
            None: the dataset's supervised pair, an image as "image", a class label as "label", others by their names.
        size: (height, width) to which images are scaled when read, bilinear with antialiasing; needed if they differ
            in size.
        memory_limit_mb: if the decoded examples need at most this many MiB, they are decoded once and kept in host
            memory; otherwise, and with 0, they are read from ArrayRecord files batch by batch.
        encoded: keep "image" encoded, a JPEG or PNG string, for `tfdist.zoo.inception:image`.

    A source of {entry: [n, ...]}; `num_classes` is that of the feature taken as "label".

    Raises:
        FileNotFoundError: the dataset or one of its files is not found, or could not be downloaded.
        ValueError: there is no such dataset, split or feature; features have no fixed shape; or the dataset needs
            more than `memory_limit_mb` and is not prepared as ArrayRecord files.
    """

    def __init__(
        self,
        split: str,
        *,
        name: str,
        data_dir: str | None = None,
        download: bool = False,
        features: Mapping[str, str] | None = None,
        size: Sequence[int] | None = None,
        memory_limit_mb: float = 2048,
        encoded: bool = False,
    ):
        if size is not None and (np.shape(size) != (2,) or min(size) < 1):
            raise ValueError(f"tfds: size must be (height, width) in pixels. Received: {size!r}")
        builder = tfds_builder.open_builder(name, data_dir, download=download)
        self._title = f"tfds dataset {builder.info.full_name!r}"
        lengths = {key: info.num_examples for key, info in builder.info.splits.items()}
        self._part = splits.resolve(split, lengths, source=self._title)
        self._features = features or _default_features(builder.info, self._title)
        self._decoder, self._decoders, self._specs = _decoder_and_specs(
            builder.info.features, self._features, size, encoded, self._title
        )
        label = self._features.get("label")
        self.num_classes = getattr(builder.info.features[label], "num_classes", None) if label else None
        self.classes = getattr(builder.info.features[label], "names", None) if label else None

        image = self._features.get("image")
        self.channels = (builder.info.features[image].shape or (3,))[-1] if image else 3

        self._format = _choose_format(builder, self._title)
        self._spans = _find_spans(builder, self._part, self._title)
        num_bytes = _estimate_bytes(self._specs, builder.info.splits[self._part.name], len(self))
        self._in_memory = num_bytes <= memory_limit_mb * 2**20
        if self._in_memory:
            self._memory = cache.InMemoryArrays(self._load)
        elif self._format == "array_record":
            self._records = ArrayRecords(self._spans)
        else:
            raise ValueError(tfds_builder.too_large_message(builder, name, num_bytes, memory_limit_mb))

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def __repr__(self) -> str:
        part, place = self._part, "in memory" if self._in_memory else f"read from {self._format} files"
        return f"{self._title}, {part.name}[{part.start}:{part.stop}]: {len(self)} examples, {place}"

    @tf.autograph.experimental.do_not_convert
    def read(self, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the examples `ids`, int64 [n], as {feature: [n, ...]}."""
        return self._memory.gather(ids) if self._in_memory else self._decode(self._read_records(ids))

    def arrays_of_part(self, examples: range) -> cache.InMemoryArrays | None:
        """Moves these examples to arrays of their own; None: they are read from files."""
        return self._memory.part(examples) if self._in_memory else None

    def verify(self) -> None:
        """Reads and decodes all records; raises ValueError, which names file and place of the first bad one."""
        decode = tf.function(self._decode, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        with tf.device("CPU:0"):
            for span in self._spans:
                done = 0
                try:
                    for chunk in record_files.chunks_of(span, self._format, CHUNK_SIZE):
                        decode(chunk)
                        done += len(chunk)
                except _READ_ERRORS:
                    self._find_damage(RecordSpan(span.path, span.start + done, span.count - done))

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the range of records read from each."""
        spans = [(os.path.basename(s.path), tf.io.gfile.stat(s.path).length, s.start, s.count) for s in self._spans]
        return hashlib.sha256(repr((self._title, spans)).encode()).hexdigest()[:16]

    def modified(self) -> str:
        """Returns a hash of the sizes and times of the files."""
        return from_disk.fingerprint(len(self._spans), lambda number: self._spans[number].path)

    def _find_damage(self, span: RecordSpan) -> None:
        position = span.start
        try:
            for record in record_files.chunks_of(span, self._format, 1):
                self._decode_record(record[0])
                position += 1
        except _READ_ERRORS as error:
            raise ValueError(
                f"{self._title}: record {position} of {span.path!r} cannot be read: {from_disk.reason(error)} "
                "Delete the folder and download the dataset again."
            ) from None

    def _load(self) -> dict[str, np.ndarray]:
        if self._format == "tfrecord":
            chunks = record_files.tfrecords(self._spans).batch(CHUNK_SIZE)
        else:
            self._records = ArrayRecords(self._spans)
            chunks = tf.data.Dataset.range(len(self)).batch(CHUNK_SIZE).map(self._read_records)
        with stream.name_damaged_example(self):
            decoded = chunks.map(self._decode, num_parallel_calls=tf.data.AUTOTUNE)
            return cache.collect(read_ahead.without_autotuning(decoded).as_numpy_iterator(), len(self))

    @tf.autograph.experimental.do_not_convert
    def _read_records(self, ids: tf.Tensor) -> tf.Tensor:
        records = tf.numpy_function(self._records.read, [ids], tf.string, stateful=False)
        return tf.ensure_shape(records, ids.shape)

    @tf.autograph.experimental.do_not_convert
    def _decode(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        return decoding.decode_each(self._decode_record, records, self._specs)

    @tf.autograph.experimental.do_not_convert
    def _decode_record(self, record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = self._decoder.deserialize_example(record, decoders=self._decoders)
        return {key: _fit(example[feature], self._specs[key]) for key, feature in self._features.items()}


def _default_features(info: Any, title: str) -> dict[str, str]:
    import tensorflow_datasets

    names = {tensorflow_datasets.features.Image: "image", tensorflow_datasets.features.ClassLabel: "label"}
    keys = info.supervised_keys
    if keys is None or not all(isinstance(key, str) for key in keys):
        raise ValueError(
            f"{title} has no supervised pair: set features={{'image': ..., 'label': ...}}. "
            f"It has: {', '.join(sorted(info.features))}."
        )
    return {names.get(type(info.features[key]), key): key for key in keys}


def _decoder_and_specs(
    features: Any, chosen: Mapping[str, str], size: tuple[int, int] | None, encoded: bool, title: str
) -> tuple[Any, dict[str, Any], dict[str, tf.TensorSpec]]:
    """Returns the decoder of the `chosen` features, the features to keep encoded, and shapes and dtypes."""
    import tensorflow_datasets

    specs, skipped = {}, {}
    for key, name in chosen.items():
        if name not in features:
            raise ValueError(f"{title} has no feature {name!r}. It has: {', '.join(sorted(features))}.")
        spec = features[name].get_tensor_spec()
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(f"{title}: the feature {name!r} is not a single tensor but {spec}. Choose other features.")
        if encoded and key == "image" and isinstance(features[name], tensorflow_datasets.features.Image):
            spec, skipped[name] = tf.TensorSpec([], tf.string), tensorflow_datasets.decode.SkipDecoding()
        elif size is not None and isinstance(features[name], tensorflow_datasets.features.Image):
            spec = tf.TensorSpec([*size, spec.shape[-1]], spec.dtype)
        if not spec.shape.is_fully_defined():
            raise ValueError(
                f"{title}: the feature {name!r} has no fixed shape ({spec.shape}) and cannot be batched. "
                "Set size=(height, width) for images, or choose other features."
            )
        specs[key] = spec
    subset = {name: features[name] for name in chosen.values()}
    return tensorflow_datasets.features.FeaturesDict(subset), skipped or None, specs


def _choose_format(builder: Any, title: str) -> str:
    formats = {kind.value for kind in builder.info.available_file_formats()}
    for kind in ("array_record", "tfrecord"):
        if kind in formats:
            builder.info.set_file_format(kind, override=True, override_if_initialized=True)
            return kind
    raise ValueError(f"{title} is prepared as {', '.join(sorted(formats))}: use array_record or tfrecord.")


def _find_spans(builder: Any, part: Any, title: str) -> list[RecordSpan]:
    instructions = builder.info.splits[f"{part.name}[{part.start}:{part.stop}]"].file_instructions
    spans = [RecordSpan(file.filename, file.skip, file.take) for file in instructions]
    for span in spans:
        if not tf.io.gfile.exists(span.path):
            raise FileNotFoundError(f"{title} is incomplete: there is no file {span.path!r}.")
    return spans


def _estimate_bytes(specs: Mapping[str, tf.TensorSpec], info: Any, num_examples: int) -> int:
    """Returns the bytes in memory: exact for numbers; strings are estimated by the size of the records."""
    numbers = sum(spec.shape.num_elements() * spec.dtype.size for spec in specs.values() if spec.dtype != tf.string)
    text = info.num_bytes / info.num_examples if any(spec.dtype == tf.string for spec in specs.values()) else 0
    return int((numbers + text) * num_examples)


def _fit(value: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Scales an image to the size of `spec`; other values already have it."""
    if value.shape.rank == 3 and value.shape != spec.shape:
        value = decoding.scale(value, spec.shape[:2])
    return tf.ensure_shape(value, spec.shape)
