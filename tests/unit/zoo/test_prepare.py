"""Batched preprocessing: every example by its own seed alone, exact on small cases, undistorted in evaluation."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
from parameters import slow

from tfdist.zoo import prepare

FULL = dict(resize=(14, 14), pad=2, crop=(12, 13), flip=True, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))


def seeds_of(ids, epoch=0):
    return tf.stack([tf.fill([len(ids)], tf.constant(epoch, tf.int64)), tf.constant(ids, tf.int64)], axis=1)


def random_images(n, size=(10, 9), channels=3, dtype=np.uint8):
    return np.random.default_rng(n).integers(0, 256, (n, *size, channels)).astype(dtype)


def numbered(n, height, width):
    """Images [n, height, width, 1] whose pixels are 1, 2, 3, ... in reading order: no two alike, none 0."""
    pixels = np.arange(1, height * width + 1, dtype=np.int32).reshape(1, height, width, 1)
    return tf.constant(np.repeat(pixels, n, axis=0))


def batch_of(n, **keywords):
    return {"image": tf.constant(random_images(n, **keywords)), "label": tf.range(n, dtype=tf.int64) % 5}


@pytest.mark.parametrize(
    ("keywords", "dtype"),
    [
        (FULL, np.float32),
        ({"pad": 4, "flip": True}, np.uint8),
        slow({"pad": 3, "mean": (0.1, 0.2, 0.3)}, np.uint8),
        slow({"resize": (23, 5)}, np.float32),
    ],
)
def test_an_example_does_not_see_its_batch(keywords, dtype):
    batch, seeds = batch_of(46, dtype=dtype), seeds_of(range(100, 146), epoch=3)
    function = tf.function(functools.partial(prepare.image, training=True, **keywords), reduce_retracing=True)
    whole = function(batch, seeds)
    parts = [np.arange(46)[part] for part in (slice(0, 22), slice(30, 32), slice(4, 38))]
    parts.append(np.random.default_rng(0).permutation(46))
    for rows in parts:
        found = function({key: tf.gather(value, rows) for key, value in batch.items()}, tf.gather(seeds, rows))
        for key, values in found.items():
            np.testing.assert_array_equal(values, whole[key].numpy()[rows])
    eager = prepare.image(batch, seeds, training=True, **keywords)
    np.testing.assert_allclose(eager["image"], whole["image"], atol=1e-6)


def test_evaluation_only_scales():
    batch = batch_of(6)
    result = prepare.image(batch, seeds_of(range(6)), training=False, **{**FULL, "resize": None, "crop": None})
    expected = (batch["image"].numpy() / 255.0 - [0.5, 0.4, 0.3]) / [0.2, 0.3, 0.25]
    np.testing.assert_allclose(result["image"], expected, atol=2e-6)
    np.testing.assert_array_equal(result["label"], batch["label"])
    assert result["label"].dtype == tf.int64 and result["image"].dtype == tf.float32


def test_evaluation_takes_the_centre():
    result = prepare.image({"image": numbered(2, 5, 6)}, seeds_of([0, 1]), training=False, crop=(3, 2), scale=1.0)
    np.testing.assert_array_equal(result["image"][1, :, :, 0], [[9, 10], [15, 16], [21, 22]])


def find_windows(padded, height, width):
    """Content of each window of this size in `padded`, as bytes -> every (top, left, flipped) at which it lies."""
    found = collections.defaultdict(list)
    for top in range(padded.shape[0] - height + 1):
        for left in range(padded.shape[1] - width + 1):
            window = padded[top : top + height, left : left + width]
            found[window.tobytes()].append((top, left, False))
            found[window[:, ::-1].tobytes()].append((top, left, True))
    return found


@pytest.mark.parametrize("size", [None, (5, 3)])
def test_crops_are_windows_of_the_padded_image_and_all_equally_likely(size):
    n, height, width, pad = 4000, 4, 5, 2
    images, seeds = numbered(n, height, width), seeds_of(range(n))
    crops = prepare.random_crop(images, seeds, size=size, pad=pad, flip=True).numpy()
    padded = np.pad(images[0, :, :, 0].numpy(), pad)
    crop_height, crop_width = size or (height, width)
    assert crops.shape == (n, crop_height, crop_width, 1)
    windows = find_windows(padded, crop_height, crop_width)
    places = [windows[crop.tobytes()] for crop in crops[..., 0]]
    assert all(len(found) == 1 for found in places)
    possible = (height + 2 * pad - crop_height + 1) * (width + 2 * pad - crop_width + 1) * 2
    counts = collections.Counter(place for (place,) in places)
    assert len(counts) == possible
    expected = n / possible
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < possible - 1 + 5 * np.sqrt(2 * (possible - 1))


def test_normalise_by_hand():
    images = tf.constant([[[[0, 255], [51, 102]]]], tf.uint8)
    result = prepare.normalise(images, scale=1 / 255, mean=(0.2, 0.5), std=(0.5, 0.25))
    np.testing.assert_allclose(result, [[[[-0.4, 2.0], [0.0, -0.4]]]], atol=1e-6)
    np.testing.assert_array_equal(prepare.normalise(images, scale=2.0), [[[[0, 510], [102, 204]]]])
    np.testing.assert_allclose(prepare.normalise(images, mean=(1, 2)), [[[[-1, 253], [50, 100]]]])
    np.testing.assert_allclose(prepare.normalise(images, std=(2, 5)), [[[[0, 51], [25.5, 20.4]]]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_the_default_divides_integers_by_255_and_leaves_floats(dtype):
    values = np.array([0, 51, 255]) if dtype is np.uint8 else np.array([0.0, 0.2, 1.0])
    images = tf.constant(values.astype(dtype).reshape(1, 1, 3, 1))
    for training in (True, False):
        batch = prepare.image({"image": images}, seeds_of([0]), training=training)
        np.testing.assert_allclose(np.ravel(batch["image"]), [0.0, 0.2, 1.0], rtol=1e-6)


@pytest.mark.parametrize("dtype", [tf.uint8, tf.float32])
def test_resize_keeps_dtype_and_averages(dtype):
    images = tf.cast([[[[0], [0], [100], [200]], [[0], [0], [100], [201]]]], dtype)
    small = prepare.resize_images(images, (1, 2))
    assert small.dtype == dtype and small.shape == (1, 1, 2, 1)
    left, right = small.numpy().ravel()
    assert left < 20 and 120 < right < 151
    assert prepare.resize_images(images, (2, 4)) is images
    flat = prepare.resize_images(tf.fill([2, 3, 3, 3], tf.cast(77, dtype)), (8, 5))
    np.testing.assert_array_equal(flat, np.full((2, 8, 5, 3), 77))


def test_other_entries_pass_and_shapes_are_known():
    batch = {**batch_of(4), "text": tf.constant(["a", "b", "c", "d"])}
    for training in (True, False):
        result = prepare.image(batch, seeds_of(range(4)), training=training, **FULL)
        assert set(result) == {"image", "label", "text"} and result["image"].shape == (4, 12, 13, 3)
        np.testing.assert_array_equal(result["text"], batch["text"])
    assert prepare.identity(batch, seeds_of(range(4)), training=True) is batch
    dataset = tf.data.Dataset.from_tensors((batch_of(4), seeds_of(range(4))))
    dataset = dataset.map(lambda batch, seeds: prepare.image(batch, seeds, training=True, pad=1, flip=True))
    assert dataset.element_spec["image"].shape == (4, 10, 9, 3)


def test_a_batch_without_images_is_named():
    for batch, options, words in (
        ({"text": tf.constant(["a", "b"])}, {"training": True}, r"\"image\".*'text': \(2,\)"),
        (batch_of(2), {"training": False, "pad": 4, "crop": (12, 12)}, "no padding in evaluation"),
    ):
        with pytest.raises(ValueError, match=words):
            prepare.image(batch, seeds_of([0, 1]), **options)
