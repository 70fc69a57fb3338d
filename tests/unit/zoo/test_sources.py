"""Sources of arrays, files and folders: what they read, in any batch, and what they say to bad input."""

import functools
import hashlib
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from launching import python
from parameters import slow_except
from PIL import Image

from tfdist import config as c
from tfdist.configs.networks import cifar, imagenet
from tfdist.data import inputs
from tfdist.zoo import decoding, sources


def ids(*numbers):
    return tf.constant(numbers, tf.int64)


def read_all(source, batch=7):
    """Reads a whole source in order, as the stream does: batches of ids in `Dataset.map`."""
    dataset = tf.data.Dataset.range(len(source)).batch(batch).map(source.read)
    batches = list(dataset.as_numpy_iterator())
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def bag(*found):
    """The images of several results of `read_all` in one order."""
    return sorted(image.tobytes() + bytes([label]) for one in found for image, label in zip(*one.values(), strict=True))


def test_an_address_is_refused_where_a_path_is_taken(monkeypatch):
    monkeypatch.setenv("BUCKET", "gs://bucket")
    of_table = functools.partial(sources.table, label="y")
    for source in (cifar.cifar, sources.image_folder, imagenet.imagenet, sources.npz, of_table):
        with pytest.raises(ValueError, match="path='gs://bucket/data'"):
            source("train", path="$BUCKET/data")


def images_of(labels):
    """Images that tell which example they are: brightness 20 x label + 3 x its number, a bright corner."""
    values = 20 * np.asarray(labels) + 3 * np.arange(len(labels)) % 17
    images = np.broadcast_to(values[:, None, None, None], (len(labels), 6, 5, 3)).astype(np.uint8)
    images = images.copy()
    images[:, 0, 0] = 255
    return images


def graph_bytes(source):
    function = tf.function(source.read, input_signature=[tf.TensorSpec([None], tf.int64)])
    return function.get_concrete_function().graph.as_graph_def().ByteSize()


@pytest.mark.workers
def test_constructors_leave_tensorflow_untouched(tmp_path):
    """Digits and folders: tests/workers/test_same_run.py and tests/unit/tools/test_saved_runs.py, on two devices."""
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 2, 2), np.uint8), y_train=np.arange(4))
    program = f"""
import sys
import numpy as np
from tfdist.zoo import sources
assert not {{"tensorflow_datasets", "array_record"}} & set(sys.modules)
made = [sources.npz("train", path={str(tmp_path / "x.npz")!r}), sources.synthetic("test")]
import tensorflow as tf
# Raises once any operation has run.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
"""
    python("-c", program)


def test_digits_are_the_shipped_ones_and_their_splits_part_the_whole():
    parts = {name: read_all(sources.digits(name), batch=500) for name in ("train", "test", "all")}
    everything = parts["all"]
    assert everything["image"].shape == (1797, 8, 8, 1) and everything["image"].dtype == np.uint8
    assert everything["label"].dtype == np.int64 and everything["image"].max() == 16
    content = everything["image"].tobytes() + everything["label"].astype(np.uint8).tobytes()
    readme = pathlib.Path(sources.__file__).parents[1] / "data" / "README.md"
    assert hashlib.sha256(content).hexdigest() in readme.read_text()
    assert {name: len(part["label"]) for name, part in parts.items()} == {"train": 1442, "test": 355, "all": 1797}
    assert bag(parts["train"], parts["test"]) == bag(everything)
    assert set(np.bincount(parts["test"]["label"])) == {34, 35, 36} and sources.digits("train").num_classes == 10
    first, last = sources.digits("train[:90%]"), sources.digits("train[90%:]")
    assert len(first) == 1298 and len(first) + len(last) == 1442
    np.testing.assert_array_equal(first.read(ids(0, 1297))["image"], parts["train"]["image"][[0, 1297]])
    np.testing.assert_array_equal(last.read(ids(0, 143))["image"], parts["train"]["image"][[1298, 1441]])


def test_arrays_are_read_by_id_and_stay_out_of_the_graph():
    labels = np.arange(300) % 7
    source = sources.arrays("b[100:]", splits={"a": {"label": [9]}, "b": {"image": images_of(labels), "label": labels}})
    assert len(source) == 200 and source.num_classes == 10
    batch = source.read(ids(0, 199, 5, 5))
    np.testing.assert_array_equal(batch["image"], images_of(labels)[[100, 299, 105, 105]])
    np.testing.assert_array_equal(batch["label"], labels[[100, 299, 105, 105]])
    assert batch["label"].dtype == tf.int64
    dataset = tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(source.read)
    assert dataset.element_spec["image"].shape == (4, 6, 5, 3)
    assert graph_bytes(source) < 5_000


def npz_arrays():
    train, test = np.arange(12) % 3, np.arange(6) % 3
    arrays = {"x_train": images_of(train)[..., 0], "y_train": train.astype(np.uint8)[:, None]}
    return arrays | {"x_test": images_of(test)[..., 0], "y_test": test.astype(np.uint8)[:, None]}


def test_npz_reads_keras_names_and_feature_split_names(tmp_path, monkeypatch):
    monkeypatch.setenv("DSDIR", str(tmp_path))
    keras_names = npz_arrays()
    rename = {"x_train": "image_train", "y_train": "label_train", "x_test": "image_test", "y_test": "label_test"}
    for arrays in (keras_names, {rename[key]: value for key, value in keras_names.items()}):
        np.savez(tmp_path / "x.npz", **arrays)
        source = sources.npz("test", path="$DSDIR/x.npz")  # A site's variable.
        batch = read_all(source)
        assert source.num_classes == 3 and batch["image"].shape == (6, 6, 5, 1) and batch["label"].shape == (6,)
        np.testing.assert_array_equal(batch["image"][..., 0], keras_names["x_test"])
        np.testing.assert_array_equal(batch["label"], keras_names["y_test"][:, 0])
        assert len(sources.npz("train[:50%]", path=str(tmp_path / "x.npz"))) == 6
    others = {"token_ids_train": np.arange(8).reshape(4, 2), "weight_train": np.ones(4, np.float32)}
    np.savez(tmp_path / "x.npz", **others, label_names=np.array(["a", "b"]))  # Names of classes are no split.
    batch = read_all(sources.npz("train", path=str(tmp_path / "x.npz")))
    np.testing.assert_array_equal(batch["token_ids"], np.arange(8).reshape(4, 2))
    assert batch["weight"].dtype == np.float32


@pytest.mark.parametrize(
    "labels, num_classes, words",
    [
        ([0, 1, 3], 3, r"'train'.* 0\.\.2.* 3 for example 2"),
        ([0, -1, 2], None, "'train'.* -1 for example 1"),
        ([0.0, 1.0, 2.0], None, "float64"),
        ([[1, 0], [0, 1], [1, 0]], None, r"\[3, 2\]"),
        ([0, 1], None, "image 3, label 2"),
    ],
)
def test_bad_labels_are_named(labels, num_classes, words):
    splits = {"train": {"image": np.zeros((3, 2, 2), np.uint8), "label": np.array(labels)}}
    with pytest.raises(ValueError, match=words):
        sources.arrays("train", splits=splits, num_classes=num_classes)


def test_npz_never_unpickles(tmp_path):
    class Opens:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    np.savez(tmp_path / "x.npz", x_train=np.array([Opens(), 1], object), y_train=np.arange(2))
    with pytest.raises(ValueError, match=r"'x_train' cannot be read.*allow_pickle"):
        sources.npz("train", path=str(tmp_path / "x.npz"))
    assert not (tmp_path / "ran").exists()


def test_npz_names_what_it_lacks_and_looks_at_the_labels_of_all_splits(tmp_path):
    path = str(tmp_path / "x.npz")
    np.savez(path, **npz_arrays() | {"y_test": np.array([0, 1, 5, 0, 1, 2])})
    assert sources.npz("train", path=path).num_classes == 6
    with pytest.raises(ValueError, match=r"'valid'.* x_train, y_train"):
        sources.npz("valid[:10]", path=path)
    np.savez(path, x_train=np.zeros((0, 2)), y_train=np.zeros(0, int))
    with pytest.raises(ValueError, match=r"'train' .* 0 examples"):
        sources.npz("train", path=path)


def make_folder(root, splits, size=(6, 5), suffix=".png"):
    """Writes images of one colour, 20 x class + number, and returns {path below root: colour}."""
    colours = {}
    for split, classes in splits.items():
        for number, (label, count) in enumerate(classes.items()):
            (root / split / label).mkdir(parents=True, exist_ok=True)
            for k in range(count):
                name = f"{split}/{label}/{k:03d}{suffix}"
                colours[name] = (20 * number + k) % 256
                image = Image.fromarray(np.full((*size, 3), colours[name], np.uint8))
                image.save(root / name, **({"quality": 100} if suffix == ".jpg" else {}))
    return colours


def folder(path, split="train", **options):
    return sources.image_folder(split, path=str(path), **options)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".gif"])
def test_image_folder_reads_every_image_once_with_its_class(tmp_path, suffix):
    splits = {"train": {"dog": 5, "ant": 7, "cat": 6}, "test": {"ant": 1, "cat": 1, "dog": 1}}
    colours = make_folder(tmp_path, splits, size=(13, 31), suffix=suffix)
    assert {decoding.image_size(str(tmp_path / name)) for name in colours} == {(13, 31)}
    source = folder(tmp_path)
    assert source.classes == ["ant", "cat", "dog"] and source.num_classes == 3 and len(source) == 18
    batch = read_all(source)
    assert batch["image"].shape == (18, 13, 31, 3) and batch["image"].dtype == np.uint8
    assert (batch["image"] == batch["image"][:, :1, :1, :1]).all()
    seen = sorted(zip(batch["label"].tolist(), batch["image"][:, 0, 0, 0].tolist(), strict=True))
    numbers = {"ant": 0, "cat": 1, "dog": 2}
    assert seen == sorted((numbers[name.split("/")[1]], c) for name, c in colours.items() if name.startswith("train"))
    assert graph_bytes(source) < 5_000
    source.verify()


def test_memory_and_disk_give_the_same_examples_and_slices_part_them(tmp_path):
    make_folder(tmp_path, {"train": {"a": 40, "b": 40}})
    near, far = (folder(tmp_path, "train[10%:]", memory_limit_mb=limit) for limit in (2048, 0))
    assert "in memory" in repr(near) and "read from files" in repr(far)
    rest, whole = read_all(folder(tmp_path, "train[:10%]")), read_all(folder(tmp_path))
    for key, values in read_all(near).items():
        np.testing.assert_array_equal(values, read_all(far)[key])
        np.testing.assert_array_equal(np.concatenate([rest[key], values]), whole[key])
    assert set(rest["label"]) == {0, 1}
    spec = tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(far.read).element_spec["image"]
    assert spec.shape == (4, 6, 5, 3)


def test_an_encoded_folder_has_the_bytes_of_its_files_of_any_size(tmp_path):
    make_folder(tmp_path, {"train": {"a": 3, "b": 9}})
    make_folder(tmp_path, {"train": {"a": 1}}, size=(9, 4))
    source = folder(tmp_path, encoded=True)
    batch = source.read(tf.range(12, dtype=tf.int64))
    files = sorted((path.read_bytes(), int(path.parent.name == "b")) for path in tmp_path.glob("train/*/*"))
    assert sorted(zip(batch["image"].numpy(), batch["label"].numpy(), strict=True)) == files
    source.verify()
    next(tmp_path.glob("train/b/004*")).write_bytes(files[0][0][:40])
    with pytest.raises(ValueError, match=r"train/b/004.png' cannot be read"):
        source.verify()


def test_grey_and_scaled_images(tmp_path):
    make_folder(tmp_path, {"train": {"a": 2}}, size=(6, 5))
    make_folder(tmp_path, {"train": {"b": 2}}, size=(9, 12))
    for limit in (2048, 0):
        source = folder(tmp_path, size=[4, 4], channels=1, memory_limit_mb=limit)
        batch = read_all(source)
        assert batch["image"].shape == (4, 4, 4, 1)
        assert sorted(batch["image"][:, 2, 2, 0].tolist()) == [0, 0, 1, 1]  # Both classes are number 0 here.
        source.verify()


def test_other_and_hidden_files_are_passed_over_and_names_have_any_bytes(tmp_path):
    make_folder(tmp_path, {"train": {"a": 2}, ".cache": {"x": 1}})
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "README.txt").write_text("x")
    data = (tmp_path / "train/a/000.png").read_bytes()
    for name in ("Thumbs.db", "._000.png", "x" * 200 + ".PNG", "\u732b.png", os.fsdecode(b"\xff\xfe.png"), "2  s.png"):
        (tmp_path / "train" / "a" / name).write_bytes(data)
    os.rename(tmp_path / "train" / "a", tmp_path / "train" / os.fsdecode(b"caf\xe9"))
    source = folder(tmp_path, memory_limit_mb=0)
    assert read_all(source)["image"].shape == (6, 6, 5, 3) and len(source.fingerprint()) == 16


def open_both(path, train, evaluation):
    source = {"target": "tfdist.zoo.sources:image_folder", "path": str(path)}
    data = c.Data(source=source, train_split=train, evaluation_split=evaluation, batch_size=2)
    config = c.Config(model={"target": "keras:Sequential"}, data=data, train=c.Train(epochs=1))
    inputs.make_sizes(config, inputs.open_inputs(config), 1)


def test_missing_splits_and_classes_are_named(tmp_path):
    """One that a split lacks: tests/workers/test_errors.py."""
    make_folder(tmp_path, {"train": {"a": 5, "b": 5, "c": 5}, "other": {"a": 2, "c": 2}})
    (tmp_path / "other" / "d").mkdir()
    (tmp_path / "other" / "d" / "x.tiff").write_bytes(b"x")
    (tmp_path / "flat").mkdir()
    for split, options, words in (
        ("test", {}, r"'test'\. .* train\. .*\"train\[:80%\]\""),
        ("other", {}, r"other/d', but x\.tiff"),
        ("flat", {}, "'flat' has no class folders"),
        ("train", {"size": [32]}, r"size .*\[32\]"),
        ("train", {"channels": 4}, "channels .*4"),
        ("train", {"encoded": True, "size": (4, 4)}, "encoded"),
    ):
        with pytest.raises(ValueError, match=words):
            folder(tmp_path, split, **options)


def test_class_folders_without_splits_are_divided_by_ratio(tmp_path):
    make_folder(tmp_path, {"shapes": {"a": 10, "b": 5, "c": 2}})
    (tmp_path / "shapes" / "runs" / "first").mkdir(parents=True)  # No images: not a class.
    path = tmp_path / "shapes"
    found = {part: read_all(folder(path, part)) for part in ("train", "test", "all")}
    counts = {part: np.bincount(batch["label"]).tolist() for part, batch in found.items()}
    assert counts == {"train": [8, 4, 1], "test": [2, 1, 1], "all": [10, 5, 2]}
    assert bag(found["train"], found["test"]) == bag(found["all"])
    assert np.bincount(read_all(folder(path, "test", test_fraction=0.5))["label"]).tolist() == [5, 2, 1]
    open_both(path, "train", "test")
    open_both(path, "train[:90%]", "train[90%:]")
    with pytest.raises(ValueError, match=r"'valid'. It has: all, test, train"):
        folder(path, "valid")


def test_synthetic_examples_depend_on_their_id_alone():
    source = sources.synthetic("train", shape=(4, 3, 2), num_examples=10**12)
    together = source.read(ids(5, 10**12 - 1, 7))
    for row, example in enumerate((5, 10**12 - 1, 7)):
        for key, values in source.read(ids(example)).items():
            np.testing.assert_array_equal(together[key][row], values[0])
    later = sources.synthetic("train[5:]", shape=(4, 3, 2), num_examples=10**12)
    np.testing.assert_array_equal(later.read(ids(0))["image"], source.read(ids(5))["image"])
    assert together["image"].dtype == tf.uint8 and together["image"].shape == (3, 4, 3, 2)


@pytest.mark.parametrize(
    ("dtype", "top"),
    slow_except([("uint8", 255), ("float32", 1), ("int32", 255), ("int8", 127), ("bfloat16", 1)], [("float32", 1)]),
)
def test_synthetic_values_have_their_range(dtype, top):
    source = sources.synthetic("test", shape=(50,), dtype=dtype, num_test_examples=200)
    values = tf.cast(read_all(source, 200)["image"], tf.float32)
    assert source.read(ids(0))["image"].dtype == tf.as_dtype(dtype)
    assert float(tf.reduce_min(values)) >= 0 and 0.9 * top < float(tf.reduce_max(values)) <= top
