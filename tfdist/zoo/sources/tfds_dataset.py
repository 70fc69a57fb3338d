"""Datasets prepared by TensorFlow Datasets."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.zoo import decoding, splits
from tfdist.zoo.sources import tfds_builder
from tfdist.zoo.sources.files import file_source, record_files


class tfds(record_files.RecordSource):
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
        memory_limit_mb: if the decoded examples have no strings and need at most this many MiB, they are decoded once
            and kept in host memory; otherwise, and with 0, they are read from the files batch by batch.
        encoded: keep "image" encoded, a JPEG or PNG string, for `tfdist.zoo.inception:image`.

    A source of {entry: [n, ...]}; `num_classes` is that of the feature taken as "label".

    Raises:
        FileNotFoundError: the dataset or one of its files is not found, or could not be downloaded.
        ValueError: there is no such dataset, split or feature, or features have no fixed shape.
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
        info = tfds_builder.open_builder(name, data_dir, download=download).info
        title = f"tfds dataset {info.full_name!r}"
        part = splits.resolve(split, {key: one.num_examples for key, one in info.splits.items()}, source=title)
        self._features = features or _default_features(info, title)
        self._decoder, self._decoders, self._specs = _decoder_and_specs(
            info.features, self._features, size, encoded, title
        )
        chosen = {key: info.features[feature] for key, feature in self._features.items()}
        label, image = chosen.get("label"), chosen.get("image")
        self.num_classes, self.classes = getattr(label, "num_classes", None), getattr(label, "names", None)
        self.channels = (getattr(image, "shape", None) or (3,))[-1]
        array_record = _choose_format(info, title) == "array_record"
        self._spans = info.splits[f"{part.name}[{part.start}:{part.stop}]"].file_instructions
        files = [os.fspath(span.filename) for span in self._spans]
        for file in files:
            if not tf.io.gfile.exists(file):
                raise FileNotFoundError(f"{title} is incomplete: there is no file {file!r}.")
        index = None if array_record else record_files.open_index(files, title)
        places = np.concatenate([_places(number, span, index) for number, span in enumerate(self._spans)])
        super().__init__(title, part, files, places, array_record=array_record)
        kinds = self._specs.values()
        size = sum(spec.shape.num_elements() * spec.dtype.size for spec in kinds)
        if tf.string not in [spec.dtype for spec in kinds] and size * len(self) <= memory_limit_mb * 2**20:
            self.keep_in_memory()

    def decode(self, records: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the features of records, strings [n]."""
        return decoding.decode_each(self._decode_one, records, self._specs)

    def _decode_one(self, record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = self._decoder.deserialize_example(record, decoders=self._decoders)
        return {key: _fit(example[feature], self._specs[key]) for key, feature in self._features.items()}

    def fingerprint(self) -> str:
        """Returns a hash of the names and sizes of the files, and of the range of records read from each."""
        spans = [
            (os.path.basename(file), tf.io.gfile.stat(file).length, span.skip, span.take)
            for file, span in zip(self.files, self._spans, strict=True)
        ]
        return file_source.digest(repr((self.name, spans)))


def _places(number: int, span: Any, index: np.ndarray | None) -> np.ndarray:
    """Returns the places of the records of a span of the file `number`; see `RecordSource`."""
    if index is not None:
        return index[index[:, 0] == number][span.skip : span.skip + span.take]
    positions = np.arange(span.skip, span.skip + span.take)
    return np.stack([np.full_like(positions, number), positions, np.zeros_like(positions)], axis=1)


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
    features: Any, chosen: Mapping[str, str], size: Sequence[int] | None, encoded: bool, title: str
) -> tuple[Any, dict[str, Any] | None, dict[str, tf.TensorSpec]]:
    """Returns the decoder of the `chosen` features, the features to keep encoded, and shapes and dtypes."""
    import tensorflow_datasets

    specs, skipped = {}, {}
    for key, name in chosen.items():
        if name not in features:
            raise ValueError(f"{title} has no feature {name!r}. It has: {', '.join(sorted(features))}.")
        spec = features[name].get_tensor_spec()
        is_image = isinstance(features[name], tensorflow_datasets.features.Image)
        if is_image and encoded and key == "image":
            spec, skipped[name] = tf.TensorSpec([], tf.string), tensorflow_datasets.decode.SkipDecoding()
        elif is_image and size is not None:
            spec = tf.TensorSpec([*size, spec.shape[-1]], spec.dtype)
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
            raise ValueError(
                f"{title}: the feature {name!r} has no fixed shape ({spec}) and cannot be batched. "
                "Set size=(height, width) for images, or choose other features."
            )
        specs[key] = spec
    subset = {name: features[name] for name in chosen.values()}
    return tensorflow_datasets.features.FeaturesDict(subset), skipped or None, specs


def _choose_format(info: Any, title: str) -> str:
    formats = {kind.value for kind in info.available_file_formats()}
    for kind in ("array_record", "tfrecord"):
        if kind in formats:
            info.set_file_format(kind, override=True, override_if_initialized=True)
            return kind
    raise ValueError(f"{title} is prepared as {', '.join(sorted(formats))}: use array_record or tfrecord.")


def _fit(value: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Scales an image to the size of `spec`; other values already have it."""
    if value.shape.rank == 3 and value.shape != spec.shape:
        value = decoding.scale(value, spec.shape[:2])
    return tf.ensure_shape(value, spec.shape)
