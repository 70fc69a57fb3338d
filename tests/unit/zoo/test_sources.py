"""Sources of arrays, files and folders: what they read, in any batch, and what they say to bad input."""

import functools
import hashlib
import os
import pathlib
import struct
import sys

import forked
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist import config as c
from tfdist.data import inputs
from tfdist.zoo import sources
from tfdist.zoo.sources.files import decoding


def ids(*numbers):
    return tf.constant(numbers, tf.int64)


def read_all(source, batch=7):
    """Reads a whole source in order, as the stream does: batches of ids in `Dataset.map`."""
    dataset = tf.data.Dataset.range(len(source)).batch(batch).map(source.read)
    batches = list(dataset.as_numpy_iterator())
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


@pytest.mark.parametrize("path", ["gs://bucket/data", "$BUCKET/data"])
@pytest.mark.parametrize(
    "source",
    [
        *(sources.cifar, sources.idx, sources.image_folder, sources.imagenet, sources.npz, sources.prepared),
        *(functools.partial(sources.table, label="y"), sources.text, functools.partial(sources.tfrecord, features={})),
    ],
)
def test_an_address_is_refused_where_a_path_is_taken(monkeypatch, source, path):
    monkeypatch.setenv("BUCKET", "gs://bucket")
    with pytest.raises(ValueError, match="path='gs://bucket/data' is an address, and must be a path"):
        source("train", path=path)


def images_of(labels, size=(6, 5), channels=3):
    """Images that tell which example they are: brightness 20 x label + 3 x its number, a bright corner."""
    values = 20 * np.asarray(labels) + 3 * np.arange(len(labels)) % 17
    images = np.broadcast_to(values[:, None, None, None], (len(labels), *size, channels)).astype(np.uint8)
    images = images.copy()
    images[:, 0, 0] = 255
    return images


def graph_bytes(source):
    function = tf.function(source.read, input_signature=[tf.TensorSpec([None], tf.int64)])
    return function.get_concrete_function().graph.as_graph_def().ByteSize()


@pytest.mark.workers
def test_constructors_leave_tensorflow_untouched(tmp_path):
    make_folder(tmp_path / "images", {"train": {"a": 2, "b": 2}})
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 2, 2), np.uint8), y_train=np.arange(4))
    program = f"""
import sys
import numpy as np
from tfdist.zoo import sources
assert not {{"tensorflow_datasets", "array_record"}} & set(sys.modules)
made = [
    sources.digits("train[:90%]"),
    sources.arrays("a", splits={{"a": {{"label": np.arange(3)}}}}),
    sources.npz("train", path={str(tmp_path / "x.npz")!r}),
    sources.image_folder("train", path={str(tmp_path / "images")!r}),
    sources.synthetic("test"),
]
[repr(source) for source in made]
import tensorflow as tf
# Raises once any operation has run.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
print(len(tf.config.list_logical_devices("CPU")), [int(s.read(tf.constant([0], tf.int64))["label"][0]) for s in made])
"""
    result = forked.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("2 [")


# digits


def test_digits_are_the_shipped_ones():
    everything = read_all(sources.digits("all"), batch=500)
    assert everything["image"].shape == (1797, 8, 8, 1) and everything["image"].dtype == np.uint8
    assert everything["label"].dtype == np.int64 and everything["image"].max() == 16
    content = everything["image"].tobytes() + everything["label"].astype(np.uint8).tobytes()
    readme = pathlib.Path(sources.__file__).parents[1] / "data" / "README.md"
    assert hashlib.sha256(content).hexdigest() in readme.read_text()


def test_digits_splits_part_the_whole_and_are_balanced():
    parts = {name: read_all(sources.digits(name), batch=500) for name in ("train", "test", "all")}
    assert {name: len(part["label"]) for name, part in parts.items()} == {"train": 1442, "test": 355, "all": 1797}

    def bag(*names):
        return sorted(
            image.tobytes() + bytes([label])
            for name in names
            for image, label in zip(parts[name]["image"], parts[name]["label"], strict=True)
        )

    assert bag("train", "test") == bag("all")
    assert set(np.bincount(parts["test"]["label"])) == {34, 35, 36}
    assert sources.digits("train").num_classes == 10


def test_slices_of_digits_are_slices():
    whole = read_all(sources.digits("train"), batch=500)
    first, last = sources.digits("train[:90%]"), sources.digits("train[90%:]")
    assert len(first) == 1298 and len(first) + len(last) == 1442
    np.testing.assert_array_equal(first.read(ids(0, 1297))["image"], whole["image"][[0, 1297]])
    np.testing.assert_array_equal(last.read(ids(0, 143))["image"], whole["image"][[1298, 1441]])


# arrays and npz


def test_arrays_are_read_by_id_and_stay_out_of_the_graph():
    labels = np.arange(300) % 7
    source = sources.arrays("b[100:]", splits={"a": {"label": [9]}, "b": {"image": images_of(labels), "label": labels}})
    assert len(source) == 200 and source.num_classes == 10
    batch = source.read(ids(0, 199, 5, 5))
    np.testing.assert_array_equal(batch["image"], images_of(labels)[[100, 299, 105, 105]])
    np.testing.assert_array_equal(batch["label"], labels[[100, 299, 105, 105]])
    assert batch["label"].dtype == tf.int64
    assert tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(source.read).element_spec["image"].shape == (
        4,
        6,
        5,
        3,
    )
    assert graph_bytes(source) < 5_000


def test_first_read_may_come_while_a_function_is_traced():
    source = sources.digits("test")

    @tf.function
    def total(numbers):
        return tf.reduce_sum(tf.cast(source.read(numbers)["image"], tf.int64))

    assert total(ids(3, 4)) == total(ids(3)) + total(ids(4))
    assert graph_bytes(source) < 5_000


def npz_arrays():
    train, test = np.arange(12) % 3, np.arange(6) % 3
    return {
        "x_train": images_of(train, channels=1)[..., 0],
        "y_train": train.astype(np.uint8)[:, None],
        "x_test": images_of(test, channels=1)[..., 0],
        "y_test": test.astype(np.uint8)[:, None],
    }


def test_npz_reads_keras_names_and_feature_split_names(tmp_path):
    keras_names = npz_arrays()
    np.savez(tmp_path / "keras.npz", **keras_names)
    rename = {"x_train": "image_train", "y_train": "label_train", "x_test": "image_test", "y_test": "label_test"}
    np.savez_compressed(tmp_path / "own.npz", **{rename[key]: value for key, value in keras_names.items()})
    for name in ("keras.npz", "own.npz"):
        source = sources.npz("test", path=str(tmp_path / name))
        batch = read_all(source)
        assert source.num_classes == 3 and batch["image"].shape == (6, 6, 5, 1) and batch["label"].shape == (6,)
        np.testing.assert_array_equal(batch["image"][..., 0], keras_names["x_test"])
        np.testing.assert_array_equal(batch["label"], keras_names["y_test"][:, 0])
    assert len(sources.npz("train[:50%]", path=str(tmp_path / "own.npz"))) == 6


def test_paths_may_contain_the_sites_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("DSDIR", str(tmp_path))
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((4, 2, 2), np.uint8), y_train=np.arange(4))
    assert len(sources.npz("train", path="$DSDIR/mnist.npz")) == 4
    (tmp_path / "images" / "train" / "one").mkdir(parents=True)
    (tmp_path / "images" / "train" / "one" / "a.png").write_bytes(
        tf.io.encode_png(np.zeros((2, 2, 3), np.uint8)).numpy()
    )
    assert len(sources.image_folder("train", path="$DSDIR/images")) == 1
    with pytest.raises(FileNotFoundError, match=rf"no TFRecord files. Expected: {tmp_path}/imagenet/train-00000"):
        sources.imagenet("train", path="${DSDIR}/imagenet")


def test_npz_takes_any_other_feature(tmp_path):
    np.savez(tmp_path / "x.npz", token_ids_train=np.arange(8).reshape(4, 2), weight_train=np.ones(4, np.float32))
    batch = read_all(sources.npz("train", path=str(tmp_path / "x.npz")))
    np.testing.assert_array_equal(batch["token_ids"], np.arange(8).reshape(4, 2))
    assert batch["weight"].dtype == np.float32
    # Names of classes are no split.
    names = {"x_train": np.zeros((4, 2)), "y_train": np.arange(4), "label_names": np.array(["a", "b", "c", "d"])}
    np.savez(tmp_path / "x.npz", **names)
    assert sources.npz("train", path=str(tmp_path / "x.npz")).num_classes == 4


BAD_LABELS = [
    ([0, 1, 3], 3, ["split 'train'", "0..2", "3 for example 2"]),
    ([0, -1, 2], None, ["split 'train'", "-1 for example 1"]),
    ([0.0, 1.0, 2.0], None, ["integers", "float64"]),
    ([[1, 0], [0, 1], [1, 0]], None, ["integers [examples]", "[3, 2]"]),
    ([0, 1], None, ["equal lengths", "image 3", "label 2"]),
]


@pytest.mark.parametrize("label, num_classes, words", BAD_LABELS)
def test_bad_labels_are_named(tmp_path, label, num_classes, words):
    image = np.zeros((3, 2, 2), np.uint8)
    np.savez(tmp_path / "x.npz", x_train=image, y_train=np.array(label))
    for make in (
        lambda: sources.npz("train", path=str(tmp_path / "x.npz"), num_classes=num_classes),
        lambda: sources.arrays(
            "train", splits={"train": {"image": image, "label": np.array(label)}}, num_classes=num_classes
        ),
    ):
        with pytest.raises(ValueError) as caught:
            make()
        assert all(word in str(caught.value) for word in words), caught.value


def test_labels_of_all_splits_are_looked_at(tmp_path):
    np.savez(tmp_path / "x.npz", x_train=np.zeros((2, 2)), y_train=[0, 1], x_test=np.zeros((2, 2)), y_test=[0, 5])
    assert sources.npz("train", path=str(tmp_path / "x.npz")).num_classes == 6
    with pytest.raises(ValueError, match=r"split 'test'.*5 for example 1"):
        sources.npz("train", path=str(tmp_path / "x.npz"), num_classes=2)


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "cut off":
        del data[len(data) // 2 :]
    elif how == "one bit":
        data[200] ^= 4  # Inside the first array: only the archive's checksum knows.
    elif how == "text":
        data = b"image,label\n1,2\n"
    elif how == "nothing":
        data = b""
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["cut off", "one bit", "text", "nothing"])
def test_a_damaged_npz_is_called_damaged(tmp_path, how):
    path = tmp_path / "x.npz"
    np.savez(path, **npz_arrays())
    damage(path, how)
    with pytest.raises(ValueError, match=r"x\.npz' is damaged or not an \.npz file"):
        sources.npz("train", path=str(path))


def test_npz_never_unpickles(tmp_path):
    class Opens:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    np.savez(tmp_path / "x.npz", x_train=np.array([Opens(), 1], object), y_train=np.arange(2))
    with pytest.raises(ValueError, match=r"'x_train' cannot be read.*allow_pickle"):
        sources.npz("train", path=str(tmp_path / "x.npz"))
    assert not (tmp_path / "ran").exists()


def test_npz_names_what_it_lacks(tmp_path):
    path = str(tmp_path / "x.npz")
    with pytest.raises(FileNotFoundError, match=r"there is no file .*x\.npz"):
        sources.npz("train", path=path)
    np.savez(path, **npz_arrays())
    with pytest.raises(ValueError, match=r"no arrays of the split 'valid'.*It has: x_train, y_train, x_test, y_test"):
        sources.npz("valid[:10]", path=path)
    np.savez(path, x_train=np.zeros((0, 2)), y_train=np.zeros(0, int))
    with pytest.raises(ValueError, match=r"split 'train' is empty: 'train' has 0 examples"):
        sources.npz("train", path=path)


# image folders


def make_folder(root, splits, size=(6, 5), suffix=".png"):
    """Writes images of one colour, 20 x class + number, and returns {path below root: colour}."""
    encode = {
        ".png": tf.io.encode_png,
        ".jpg": lambda image: tf.io.encode_jpeg(image, quality=100),
        ".bmp": bmp,
        ".gif": gif,
    }[suffix]
    colours = {}
    for split, classes in splits.items():
        for number, (label, count) in enumerate(classes.items()):
            (root / split / label).mkdir(parents=True, exist_ok=True)
            for k in range(count):
                name = f"{split}/{label}/{k:03d}{suffix}"
                colours[name] = (20 * number + k) % 256
                data = encode(np.full((*size, 3), colours[name], np.uint8))
                (root / name).write_bytes(data.numpy() if hasattr(data, "numpy") else data)
    return colours


def bmp(image):
    height, width, _ = image.shape
    rows = b"".join(row.tobytes().ljust((3 * width + 3) // 4 * 4, b"\0") for row in image[::-1])
    head = b"BM" + np.array([54 + len(rows), 0, 54, 40], "<u4").tobytes() + np.array([width, height], "<i4").tobytes()
    return head + np.array([1, 24], "<u2").tobytes() + np.array([0, len(rows), 0, 0, 0, 0], "<u4").tobytes() + rows


def gif(image):
    """An uncompressed GIF of one colour: LZW codes of 8 bits + 1, cleared so often that they never grow."""
    height, width, _ = image.shape
    table = np.repeat(np.arange(128, dtype=np.uint8), 3).tobytes()  # 128 greys, 7 bits.
    codes = [c for k in range(height * width) for c in ([128] if k % 100 == 0 else []) + [int(image[0, 0, 0])]] + [129]
    bits = "".join(f"{code:08b}"[::-1] for code in codes)
    packed = bytes(int(bits[i : i + 8].ljust(8, "0")[::-1], 2) for i in range(0, len(bits), 8))
    blocks = b"".join(bytes([len(packed[i : i + 255])]) + packed[i : i + 255] for i in range(0, len(packed), 255))
    size = np.array([width, height], "<u2").tobytes()
    frame = b"\x2c\0\0\0\0" + size + b"\0\x07" + blocks + b"\0"
    return b"GIF89a" + size + b"\xf6\0\0" + table + frame + b"\x3b"


def test_image_folder_reads_every_image_once_with_its_class(tmp_path):
    colours = make_folder(tmp_path, {"train": {"dog": 5, "ant": 7, "cat": 6}, "test": {"ant": 1, "cat": 1, "dog": 1}})
    source = sources.image_folder("train", path=str(tmp_path))
    assert source.classes == ["ant", "cat", "dog"] and source.num_classes == 3 and len(source) == 18
    batch = read_all(source)
    assert batch["image"].shape == (18, 6, 5, 3) and batch["image"].dtype == np.uint8
    assert (batch["image"] == batch["image"][:, :1, :1, :1]).all()
    seen = sorted(zip(batch["label"].tolist(), batch["image"][:, 0, 0, 0].tolist(), strict=True))
    numbers = {"ant": 0, "cat": 1, "dog": 2}
    assert seen == sorted((numbers[name.split("/")[1]], c) for name, c in colours.items() if name.startswith("train"))
    assert graph_bytes(source) < 5_000


def test_memory_and_disk_give_the_same_examples(tmp_path):
    make_folder(tmp_path, {"train": {"a": 40, "b": 40}})
    near, far = (sources.image_folder("train[10%:]", path=str(tmp_path), memory_limit_mb=limit) for limit in (2048, 0))
    assert "in memory" in repr(near) and "read from files" in repr(far)
    for key, values in read_all(near).items():
        np.testing.assert_array_equal(values, read_all(far)[key])
    spec = tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(far.read).element_spec["image"]
    assert spec.shape == (4, 6, 5, 3)


@pytest.mark.parametrize("count", [1, 5, 8, 12, 24])
def test_examples_decoded_in_groups_are_those_decoded_one_by_one(count):
    contents = tf.constant([f"{number:03d}" for number in range(count)])
    spec = {"number": tf.TensorSpec([], tf.int32), "twice": tf.TensorSpec([2], tf.string)}

    def decode(content):
        return {"number": tf.strings.to_number(content, tf.int32), "twice": tf.stack([content, content])}

    unknown = tf.function(
        lambda contents: decoding.decode_each(decode, contents, spec),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    for found in (decoding.decode_each(decode, contents, spec), unknown(contents)):
        assert found["number"].numpy().tolist() == list(range(count))
        assert found["twice"].numpy().tolist() == [[content, content] for content in contents.numpy()]


def test_an_encoded_folder_has_the_bytes_of_its_files_of_any_size(tmp_path):
    make_folder(tmp_path, {"train": {"a": 3, "b": 9}})
    make_folder(tmp_path, {"train": {"a": 1}}, size=(9, 4))
    source = sources.image_folder("train", path=str(tmp_path), encoded=True)
    batch = source.read(tf.range(12, dtype=tf.int64))
    files = sorted((path.read_bytes(), int(path.parent.name == "b")) for path in tmp_path.glob("train/*/*"))
    assert sorted(zip(batch["image"].numpy(), batch["label"].numpy(), strict=True)) == files
    source.verify()
    assert source.arrays_of_part(range(6)) is None
    next(tmp_path.glob("train/b/004*")).write_bytes(files[0][0][:40])
    with pytest.raises(ValueError, match=r"train/b/004.png' cannot be read"):
        source.verify()
    with pytest.raises(ValueError, match="image_folder: encoded images are not scaled when read"):
        sources.image_folder("train", path=str(tmp_path), encoded=True, size=(4, 4))


def test_slices_of_a_folder_part_it_and_hold_all_classes(tmp_path):
    make_folder(tmp_path, {"train": {"a": 30, "b": 30}})
    parts = [
        read_all(sources.image_folder(split, path=str(tmp_path))) for split in ("train[:80%]", "train[80%:]", "train")
    ]
    joined = {key: np.concatenate([parts[0][key], parts[1][key]]) for key in parts[0]}
    for key, values in parts[2].items():
        np.testing.assert_array_equal(joined[key], values)
    assert set(parts[1]["label"]) == {0, 1} and abs(parts[0]["label"].mean() - 0.5) < 0.15


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".gif"])
@pytest.mark.parametrize("size", [(6, 5), (13, 31)])
def test_all_formats_are_read_and_measured(tmp_path, suffix, size):
    colours = make_folder(tmp_path, {"train": {"a": 3, "b": 2}}, size=size, suffix=suffix)
    for name in colours:
        assert decoding.image_size(str(tmp_path / name)) == size
    source = sources.image_folder("train", path=str(tmp_path))
    batch = read_all(source)
    assert batch["image"].shape == (5, *size, 3)
    assert sorted(batch["image"][:, 0, 0, 0].tolist()) == sorted(colours.values())
    source.verify()


def test_grey_and_scaled_images(tmp_path):
    make_folder(tmp_path, {"train": {"a": 2}}, size=(6, 5))
    make_folder(tmp_path, {"train": {"b": 2}}, size=(9, 12))
    for limit in (2048, 0):
        source = sources.image_folder("train", path=str(tmp_path), size=[4, 4], channels=1, memory_limit_mb=limit)
        batch = read_all(source)
        assert batch["image"].shape == (4, 4, 4, 1)
        assert sorted(batch["image"][:, 2, 2, 0].tolist()) == [0, 0, 1, 1]  # Both classes are number 0 here.
        source.verify()
    make_folder(tmp_path, {"test": {"a": 2}}, size=(6, 5), suffix=".bmp")
    with pytest.raises(ValueError, match=r"channels=1 needs JPEG or PNG files\. Received: '.*test/a/.*\.bmp'"):
        sources.image_folder("test", path=str(tmp_path), channels=1)


def test_other_and_hidden_files_are_passed_over(tmp_path):
    make_folder(tmp_path, {"train": {"a": 2}, ".cache": {"x": 1}})
    (tmp_path / "train" / "a" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "train" / "a" / "._000.png").write_bytes(b"x")
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "README.txt").write_text("x")
    source = sources.image_folder("train", path=str(tmp_path))
    assert len(source) == 2 and source.classes == ["a"]


def test_names_of_any_bytes_and_length(tmp_path):
    make_folder(tmp_path, {"train": {"\u00e9t\u00e9 long": 1}})
    folder = tmp_path / "train" / "\u00e9t\u00e9 long"
    data = (folder / "000.png").read_bytes()
    for name in ("x" * 200 + ".PNG", "\u732b.png", os.fsdecode(b"\xff\xfe.png"), "two  spaces.png"):
        (folder / name).write_bytes(data)
    os.rename(folder, tmp_path / "train" / os.fsdecode(b"caf\xe9"))
    source = sources.image_folder("train", path=str(tmp_path), memory_limit_mb=0)
    assert read_all(source)["image"].shape == (5, 6, 5, 3) and len(source.fingerprint()) == 16


def test_missing_folders_splits_and_classes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*/none'.*PATH/SPLIT/CLASS"):
        sources.image_folder("train", path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"no split 'train'. It has: none"):
        sources.image_folder("train", path=str(tmp_path))
    make_folder(tmp_path, {"train": {"a": 2, "b": 2, "c": 2}, "test": {"a": 2, "c": 2}})
    with pytest.raises(ValueError, match=r"no split 'valid'. It has: test, train"):
        sources.image_folder("valid", path=str(tmp_path))
    with pytest.raises(ValueError, match=r"the split 'test' lacks the class 'b', which 'train' has"):
        open_both(tmp_path, "train", "test")
    with pytest.raises(ValueError, match=r"the split 'test' lacks the class 'b', which 'train' has"):
        open_both(tmp_path, "test", "train")
    (tmp_path / "runs" / "other").mkdir(parents=True)  # Not a split of the config.
    assert len(sources.image_folder("train", path=str(tmp_path))) == 6
    chosen = sources.image_folder("train", path=str(tmp_path), classes=["c", "a"])
    assert chosen.num_classes == 2 and len(chosen) == 4
    batch = read_all(chosen)
    assert {(int(c) // 20, int(k)) for c, k in zip(batch["image"][:, 0, 0, 0], batch["label"], strict=True)} == {
        (2, 0),
        (0, 1),
    }
    with pytest.raises(ValueError, match=r"'test' has no folder for the class 'b', which classes names"):
        sources.image_folder("test", path=str(tmp_path), classes=["a", "b"])


def open_both(path, train, evaluation):
    data = c.Data(
        source={"target": "tfdist.zoo.sources:image_folder", "path": str(path)},
        train_split=train,
        evaluation_split=evaluation,
        batch_size=2,
    )
    config = c.Config(model={"target": "keras:Sequential"}, data=data, train=c.Train(epochs=1))
    inputs.make_sizes(config, inputs.open_inputs(config), 1)


def test_class_folders_without_splits_are_divided_by_ratio(tmp_path):
    make_folder(tmp_path, {"shapes": {"a": 10, "b": 5, "c": 2}})
    (tmp_path / "shapes" / "runs" / "first").mkdir(parents=True)  # No images: not a class.
    path = str(tmp_path / "shapes")
    parts = {part: sources.image_folder(part, path=path) for part in ("train", "test", "all")}
    found = {part: read_all(source) for part, source in parts.items()}
    assert {part: np.bincount(batch["label"]).tolist() for part, batch in found.items()} == {
        "train": [8, 4, 1],
        "test": [2, 1, 1],
        "all": [10, 5, 2],
    }
    assert parts["train"].classes == ["a", "b", "c"]

    def bag(*names):
        return sorted(image.tobytes() for name in names for image in found[name]["image"])

    assert bag("train", "test") == bag("all")
    half = sources.image_folder("test", path=path, test_fraction=0.5)
    assert np.bincount(read_all(half)["label"]).tolist() == [5, 2, 1]
    open_both(path, "train", "test")
    open_both(path, "train[:90%]", "train[90%:]")
    with pytest.raises(ValueError, match=r"no split 'valid'. It has: all, test, train"):
        sources.image_folder("valid", path=path)


def test_a_single_folder_of_a_split_says_how_it_is_divided(tmp_path):
    make_folder(tmp_path, {"train": {"a": 5, "b": 5}})
    words = r"no split 'test'. It has: train. To divide 'train', set config.data.train_split=\"train\[:80%\]\" and"
    with pytest.raises(ValueError, match=words):
        sources.image_folder("test", path=str(tmp_path))


def test_a_class_without_images_and_a_split_without_classes_are_named(tmp_path):
    make_folder(tmp_path, {"train": {"a": 2, "b": 0}})
    (tmp_path / "train" / "b" / "x.tiff").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"no images in '.*train/b', but x\.tiff"):
        sources.image_folder("train", path=str(tmp_path))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "x.png").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"'flat' has no class folders"):
        sources.image_folder("flat", path=str(tmp_path))


@pytest.mark.parametrize("how", slow_except(["cut off", "text", "nothing"], ["cut off"]))
@pytest.mark.parametrize("limit", [2048, 0])
def test_a_damaged_image_is_named(tmp_path, how, limit):
    make_folder(tmp_path, {"train": {"a": 600}}, suffix=".jpg")
    source = sources.image_folder("train", path=str(tmp_path), memory_limit_mb=limit)
    bad = pathlib.Path(source.files[555])
    damage(bad, how)
    with pytest.raises(
        ValueError, match=rf"The image '.*/train/a/{bad.name}' cannot be read: \w.*\. Repair or"
    ) as caught:
        source.verify()
    assert "{{" not in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises((ValueError, tf.errors.OpError)) as caught:
        read_all(source)
    if limit:
        assert isinstance(caught.value, ValueError) and bad.name in str(caught.value)


def test_a_damaged_first_image_is_named_before_anything_is_read(tmp_path):
    make_folder(tmp_path, {"train": {"a": 1}})
    (tmp_path / "train" / "a" / "000.png").write_bytes(b"RIFF....WEBP")
    with pytest.raises(ValueError, match=r"000\.png' cannot be read: not a JPEG, PNG, GIF or BMP file"):
        sources.image_folder("train", path=str(tmp_path))
    bitmap = struct.pack("<2sIIIIiiHH24x", b"BM", 54, 0, 54, 40, 50_000, 50_000, 1, 24)  # The header alone.
    (tmp_path / "train" / "a" / "000.png").write_bytes(bitmap)
    with pytest.raises(ValueError, match=r"000\.png' cannot be read: .*, or too large"):
        sources.image_folder("train", path=str(tmp_path))


def test_images_of_different_sizes_ask_for_a_size(tmp_path):
    make_folder(tmp_path, {"train": {"a": 3}}, size=(6, 5))
    make_folder(tmp_path, {"train": {"b": 1}}, size=(7, 7))
    source = sources.image_folder("train", path=str(tmp_path))
    with pytest.raises(ValueError, match=r"train/b/000.png.*has 6x5 pixels") as caught:
        read_all(source)
    assert "size=(height, width)" in str(caught.value)


def test_bad_arguments_of_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"size must be \(height, width\).*\[32\]"):
        sources.image_folder("train", path=str(tmp_path), size=[32])
    with pytest.raises(ValueError, match=r"channels must be 1 .* 4"):
        sources.image_folder("train", path=str(tmp_path), channels=4)


# synthetic


def test_synthetic_examples_depend_on_their_id_alone():
    source = sources.synthetic("train", shape=(4, 3, 2), num_examples=10**12)
    together = source.read(ids(5, 10**12 - 1, 7))
    for row, example in enumerate((5, 10**12 - 1, 7)):
        for key, values in source.read(ids(example)).items():
            np.testing.assert_array_equal(together[key][row], values[0])
    later = sources.synthetic("train[5:]", shape=(4, 3, 2), num_examples=10**12)
    np.testing.assert_array_equal(later.read(ids(0))["image"], source.read(ids(5))["image"])
    assert together["image"].dtype == tf.uint8 and together["image"].shape == (3, 4, 3, 2)


def test_synthetic_splits_share_nothing_and_classes_can_be_learnt():
    train, test = (
        sources.synthetic(name, shape=(64,), num_examples=2000, num_test_examples=500, num_classes=7)
        for name in ("train", "test")
    )
    a, b = read_all(train, 500), read_all(test, 500)
    assert len(a["label"]) == 2000 and len(b["label"]) == 500
    assert not {row.tobytes() for row in a["image"]} & {row.tobytes() for row in b["image"]}
    counts = np.bincount(a["label"], minlength=7)
    assert len(counts) == 7 and counts.min() > 2000 / 7 * 0.75
    means = np.stack([a["image"][a["label"] == k].mean(0) for k in range(7)])
    nearest = ((b["image"][:, None].astype(float) - means) ** 2).sum(-1).argmin(1)
    assert (nearest == b["label"]).mean() > 0.99


@pytest.mark.parametrize(
    "dtype, high, top",
    [("uint8", None, 255), ("float32", None, 1), ("int32", 1000, 999), ("int8", None, 127), ("bfloat16", 2.0, 2)],
)
def test_synthetic_values_have_their_range(dtype, high, top):
    source = sources.synthetic("test", shape=(50,), dtype=dtype, high=high, num_test_examples=200)
    values = tf.cast(read_all(source, 200)["image"], tf.float32)
    assert source.read(ids(0))["image"].dtype == tf.as_dtype(dtype)
    assert float(tf.reduce_min(values)) >= 0
    assert 0.9 * top < float(tf.reduce_max(values)) <= top


@pytest.mark.parametrize(
    "keywords, words",
    [
        (dict(num_classes=0), "num_classes"),
        (dict(num_examples=0), "num_examples"),
        (dict(num_test_examples=-1), "num_test_examples"),
        (dict(shape=(3, 0)), "shape"),
        (dict(shape=()), "shape"),
        (dict(high=300), "high"),
        (dict(high=200, dtype="int8"), "high"),
        (dict(high=0), "high"),
    ],
)
def test_bad_arguments_of_synthetic(keywords, words):
    with pytest.raises(ValueError, match=f"synthetic: {words}.*Received"):
        sources.synthetic("train", **keywords)
