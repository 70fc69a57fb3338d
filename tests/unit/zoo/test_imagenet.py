"""ImageNet's layout in small: TFRecord files of images of many sizes, the crop of Inception, the central crop."""

import sys

import numpy as np
import pytest
import tensorflow as tf

from tfdist.configs.networks import imagenet
from tfdist.zoo import inception

COUNTS = {"train": (3, 4), "validation": (2, 3)}  # Files of a split, and images of a file.


def picture(example):
    """A picture of its own size; the tenth is a PNG and the second is grey, as there are some in ImageNet."""
    height, width = 40 + 7 * (example % 5), 36 + 5 * (example % 7)
    rows = np.linspace(0, 255, height)[:, np.newaxis, np.newaxis]
    columns = np.linspace(0, 255, width)[np.newaxis, :, np.newaxis]
    level = np.full((height, width, 1), 20 * example % 256)
    pixels = np.concatenate([np.broadcast_to(rows, level.shape), np.broadcast_to(columns, level.shape), level], axis=-1)
    pixels = pixels.astype(np.uint8)
    if example == 10:
        return tf.io.encode_png(pixels).numpy()
    return tf.io.encode_jpeg(pixels[..., :1] if example == 2 else pixels, quality=100).numpy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """12 training images of 3 classes in 3 files, 6 validation images in 2."""
    path = tmp_path_factory.mktemp("imagenet")
    example = 0
    for split, (files, images) in COUNTS.items():
        for number in range(files):
            with tf.io.TFRecordWriter(str(path / f"{split}-{number:05d}-of-{files:05d}")) as writer:
                for _ in range(images):
                    record = tf.train.Example()
                    record.features.feature["image/encoded"].bytes_list.value.append(picture(example))
                    record.features.feature["image/class/label"].int64_list.value.append(example % 3 + 1)
                    writer.write(record.SerializeToString())
                    example += 1
    return path


def test_records_are_read_in_any_order_and_labels_count_from_0(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        source = imagenet.imagenet("train", path=str(folder), num_classes=3)
        assert len(source) == 12 and source.num_classes == 3
        ids = tf.constant([11, 0, 10, 5, 5], tf.int64)
        batch = source.read(ids)
        for content, example in zip(batch["image"].numpy(), ids.numpy(), strict=True):
            assert content == picture(example)
        np.testing.assert_array_equal(batch["label"], ids.numpy() % 3)
        # The second time their places are read from the user's cache.
        monkeypatch.setattr(sys.modules["tfdist.zoo.sources.files.record_files"], "_locate", None)
    source.verify()
    monkeypatch.undo()
    part = imagenet.imagenet("validation[50%:]", path=str(folder), num_classes=3)
    assert len(part) == 3 and part.read(tf.constant([0], tf.int64))["image"].numpy()[0] == picture(15)
    shapes = tf.data.Dataset.range(4).batch(2, drop_remainder=True).map(source.read).element_spec
    assert shapes["image"] == tf.TensorSpec([2], tf.string) and shapes["label"] == tf.TensorSpec([2], tf.int64)


@pytest.mark.slow
def test_windows_fit_have_the_area_and_the_shape_asked_for_and_fall_back():
    shape = tf.constant([60, 100, 3])
    draws = tf.random.stateless_uniform([500, 41], [1, 2])
    window = tf.function(lambda row: inception.random_window(shape, row, (0.08, 1.0), (3 / 4, 4 / 3)))
    windows = np.array([window(row) for row in draws])
    top, left, height, width = windows.T
    assert np.all(top >= 0) and np.all(left >= 0) and np.all(top + height <= 60) and np.all(left + width <= 100)
    shares, ratios = height * width / 6000, width / height
    assert 0.07 < shares.min() < 0.12 and shares.max() > 0.7
    assert 0.7 < ratios.min() < 0.8 and 1.25 < ratios.max() < 1.42
    assert top.min() == left.min() == 0 and (top + height).max() == 60 and (left + width).max() == 100
    # A strip that no window of these shapes and areas fits into: its central square.
    strip = inception.random_window(tf.constant([10, 1000, 3]), draws[0], (0.9, 1.0), (3 / 4, 4 / 3))
    np.testing.assert_array_equal(strip, [0, 495, 10, 10])
    np.testing.assert_array_equal(inception.central_window(shape, 8, 8), [15, 35, 30, 30])


def test_an_image_is_augmented_by_its_seed_alone(folder):
    source = imagenet.imagenet("train", path=str(folder), num_classes=3)
    seeds = tf.stack([tf.range(12, dtype=tf.int64), tf.fill([12], tf.constant(7, tf.int64))], axis=1)
    everything = inception.image(source.read(tf.range(12, dtype=tf.int64)), seeds, training=True, size=32)["image"]
    assert everything.shape == (12, 32, 32, 3) and everything.dtype == tf.float32
    for example in (10, 2, 11):  # A PNG and a grey one among them.
        ids = tf.constant([example], tf.int64)
        alone = inception.image(source.read(ids), seeds[example : example + 1], training=True, size=32)["image"]
        np.testing.assert_array_equal(alone[0], everything[example])
    other = inception.image(source.read(tf.range(12, dtype=tf.int64)), seeds + 1, training=True, size=32)["image"]
    assert all(np.abs(a - b).max() > 0.1 for a, b in zip(everything.numpy(), other.numpy(), strict=True))


def test_evaluation_takes_the_centre(folder):
    source = imagenet.imagenet("train", path=str(folder), num_classes=3)
    ids = tf.constant([3, 10], tf.int64)
    plain = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "scale": 1.0}
    found = inception.image(source.read(ids), tf.zeros([2, 2], tf.int64), training=False, size=28, margin=4, **plain)
    for image, example in zip(found["image"], ids.numpy(), strict=True):
        pixels = tf.io.decode_image(picture(example), channels=3).numpy()
        height, width, _ = pixels.shape
        side = round(min(height, width) * 28 / 32)
        top, left = (height - side) // 2, (width - side) // 2
        expected = tf.image.resize(pixels[top : top + side, left : left + side], (28, 28), antialias=True)
        np.testing.assert_allclose(image, expected, atol=1.5)


def test_missing_and_damaged_files_are_named(folder, tmp_path):
    def refused(words, path=tmp_path, split="train", error=ValueError, **options):
        with pytest.raises(error, match=words):
            imagenet.imagenet(split, path=str(path), **options).verify()

    refused("train-", tmp_path / "none", error=FileNotFoundError)
    refused("test-", folder, "test", error=FileNotFoundError)
    (tmp_path / "train").mkdir()
    content = (folder / "train-00001-of-00003").read_bytes()
    (tmp_path / "train" / "train-00001-of-00003").write_bytes(content)
    refused("2 of 00003 files are missing, the first 00000", error=FileNotFoundError)
    for number in (0, 2):
        (tmp_path / "train" / f"train-{number:05d}-of-00003").write_bytes(content[: -7 * number])
    refused(r"00002-of-00003' is cut off .* \d+")
    two = tmp_path / "two"
    (two / "train").mkdir(parents=True)
    paths = two / "train" / "train-00000-of-00001", two / "train" / "train-00001-of-00003"
    for path in paths:
        path.write_bytes(content)
    refused("files of two sets", two)
    paths[1].unlink()
    paths[0].write_bytes(content[:20] + b"\x01" + content[21:])
    refused(r"byte \d+ of .*00000-of-00001' cannot be read", two)
    refused(r"byte \d+ of .* 1 to 2", folder, num_classes=2)
    with pytest.raises(ValueError, match=r'inception:image .*"image"'):
        inception.image({"image": tf.zeros([2, 8, 8, 3])}, tf.zeros([2, 2], tf.int64), training=True)


@pytest.mark.slow
def test_half_of_the_images_are_mirrored_and_nothing_else_changes():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    seeds = tf.constant(np.arange(80).reshape(40, 2), tf.int64)
    plain = {"area": (1.0, 1.0), "aspect": (1.0, 1.0), "size": 8, "mean": (0, 0, 0), "std": (1, 1, 1), "scale": 1}
    encoded = tf.stack([tf.io.encode_png(one) for one in pixels])
    found = inception.image({"image": encoded}, seeds, training=True, **plain)["image"].numpy()
    kept = [np.array_equal(found[n], pixels[n]) for n in range(40)]
    mirrored = [np.array_equal(found[n], pixels[n, :, ::-1]) for n in range(40)]
    assert all(a != b for a, b in zip(kept, mirrored, strict=True)) and 10 < sum(mirrored) < 30
