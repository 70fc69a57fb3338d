"""Sources of the data that people have: .npz of any names, tables, text, Python objects, TFRecord files."""

import json

import numpy as np
import pytest
import tensorflow as tf

from configs import char_gpt
from tfdist.zoo import sources
from tfdist.zoo.sources.table import encode
from tfdist.zoo.sources.table import read as read_table


def read(source):
    """All examples of a source, read as a run reads them."""
    dataset = tf.data.Dataset.range(len(source)).batch(5).map(source.read)
    batches = list(dataset.as_numpy_iterator())
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


def rows(values):
    return sorted(np.asarray(values).reshape(len(values), -1).tolist())


def both(make):
    """The splits "train" and "test", which together are "all"; returns what each holds."""
    found = {split: read(make(split)) for split in ("train", "test", "all")}
    key = next(iter(found["all"]))
    assert rows([*found["train"][key], *found["test"][key]]) == rows(found["all"][key])
    return found


# .npz


def test_npz_without_splits_is_divided_by_ratio_if_its_arrays_are_named(tmp_path):
    path = str(tmp_path / "x.npz")
    x, y = np.arange(40).reshape(20, 2).astype(np.float32), np.arange(20) % 4
    np.savez(path, x=x, y=y)
    keys = {"inputs": "x", "label": "y"}
    found = both(lambda split: sources.npz(split, path=path, keys=keys, test_fraction=0.25))
    assert len(found["train"]["label"]) == 15 and len(found["test"]["label"]) == 5
    np.testing.assert_array_equal(found["test"]["inputs"][:, 0] // 2 % 4, found["test"]["label"])  # Rows stay together.
    assert sources.npz("train[:80%]", path=path, keys=keys).num_classes == 4
    assert len(sources.npz("train[:80%]", path=path, keys=keys)) == 13
    with pytest.raises(ValueError, match=r"no arrays of the split 'train'.* It has: x, y\. Rename them, .*keys="):
        sources.npz("train", path=path)

    names = np.array(["cat", "dog"])[y % 2]
    np.savez(path, photos=np.zeros((20, 4, 4), np.uint8), species=names)
    source = sources.npz("all", path=path, keys={"image": "photos", "label": "species"})
    assert source.classes == ["cat", "dog"] and read(source)["image"].shape == (20, 4, 4, 1)
    with pytest.raises(ValueError, match=r"has no array 'x'. It has: photos, species"):
        sources.npz("all", path=path, keys={"image": "x"})
    np.savez(path, X=x, y=y.astype("M8[D]"))
    with pytest.raises(ValueError, match=r"'targets' must be an array of numbers .* Received: datetime64\[D\] \[20\]"):
        sources.npz("train", path=path, keys={"targets": "y"})


# tables

CSV = """size,colour,old,id,species
1.5,red,True,a1,cat
2.5,blue,False,a2,dog
,red,True,a3,cat
4.5,green,False,a4,dog
"""


def test_a_table_is_numbers_and_categories(tmp_path):
    path = str(tmp_path / "animals.csv")
    (tmp_path / "animals.csv").write_text(CSV)
    source = sources.table("all", path=path, label="species", ignore=["id"])
    assert source.classes == ["cat", "dog"] and source.num_classes == 2
    found = read(source)
    # size (the missing one is the mean), blue, green, red, old.
    expected = [[1.5, 0, 0, 1, 1, 0], [2.5, 1, 0, 0, 0, 1], [8.5 / 3, 0, 0, 1, 1, 0], [4.5, 0, 1, 0, 0, 1]]
    np.testing.assert_allclose(
        rows(np.column_stack([found["inputs"], found["label"]])), sorted(map(list, expected)), rtol=1e-6
    )
    columns = json.loads(json.dumps(source.columns))  # As data.json holds it.
    assert columns["colour"] == {"role": "input", "kind": "category", "values": ["blue", "green", "red"]}
    assert columns["species"] == {"role": "label", "kind": "class", "values": ["cat", "dog"]}
    frame = read_table(path).iloc[[3]]
    np.testing.assert_allclose(encode(frame, columns), [expected[3][:-1]])
    both(lambda split: sources.table(split, path=path, label="species", ignore=["id"]))

    with pytest.raises(ValueError, match=r"1 rows have no value in the column 'size'; the first is row 2"):
        sources.table("train", path=path, label="size", ignore=["id"], kind="number")
    frame = read_table(path).astype({"old": "boolean"})
    frame.to_parquet(tmp_path / "old.parquet")
    old = sources.table("all", path=str(tmp_path / "old.parquet"), label="old", ignore=["id"])
    assert old.classes == ["0", "1"] and sorted(read(old)["label"]) == [0, 0, 1, 1]
    frame = read_table(path).dropna()
    frame.to_parquet(tmp_path / "animals.parquet")
    again = sources.table("all", path=str(tmp_path / "animals.parquet"), label="size", ignore=["id"], kind="number")
    assert again.num_classes is None and rows(read(again)["targets"]) == [[1.5], [2.5], [4.5]]


def test_a_large_table_has_one_type_in_each_column(tmp_path):
    lines = ["x,label", ",1", *["1,0"] * 400_000, "u,0", "1,0"]
    (tmp_path / "large.csv").write_text("\n".join(lines))
    frame = read_table(str(tmp_path / "large.csv"))
    assert set(frame["x"].dropna()) == {"1", "u"}


def test_a_table_that_cannot_be_used_names_its_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(f"name{number},{number % 3 + 1}" for number in range(200)))
    for keywords, words in (
        ({"label": "c"}, r"has no column 'c'. It has: a, b"),
        ({"label": "b"}, r"the column 'a' has 200 different texts, such as 'name0'.*ignore=\['a'\]"),
        ({"label": "b", "ignore": ["a"]}, r"has no column besides 'b'"),
        ({"label": "a", "kind": "number"}, r"the column 'a' holds texts"),
        ({"label": "b", "kind": "words"}, r'kind must be "class", "number" or None'),
    ):
        with pytest.raises(ValueError, match=words):
            sources.table("train", path=str(path), **keywords)
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.csv"):
        sources.table("train", path=str(tmp_path / "none.csv"), label="b")
    path.write_text("a,b\n1,2,3,4\n1\n5,6,7\n")
    with pytest.raises(ValueError, match=r"t\.csv' cannot be read|has no column"):
        sources.table("train", path=str(path), label="c")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("y,a\n0,1,2\n1,3,4\n", "cannot be read by pandas: Length of header or names does not match"),
        ("y;a\n1;2,5\n", r"has no column 'y'|cannot be read"),
        ('a,y\n"1,5",u\n2,v\n', r"'a' holds numbers with commas.*ignore=\['a'\]"),
        ('a,y\n1,"1,5"\n2,"2,5"\n', "'y' holds numbers with commas"),
        ("a,y\n1,u\n1e400,v\n", "'a' has a number that is infinite or too large in row 1"),
        ("a,y\n1,1.5\n2,1e39\n", "'y' has a number that is infinite or too large in row 1"),
        ("a,y\n1,\xfc\n".encode("latin-1"), "cannot be read by pandas: 'utf-8' codec can't"),
    ],
)
def test_a_table_that_would_be_read_wrongly_is_refused(content, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=words):
        sources.table("all", path=str(path), label="y")


def test_labels_of_a_table_that_begin_at_1_are_classes_from_0(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(f"{number},{number % 3 + 1}" for number in range(30)))
    source = sources.table("all", path=str(path), label="b")
    found = read(source)
    assert source.classes == ["1", "2", "3"] and set(found["label"]) == {0, 1, 2}
    np.testing.assert_array_equal(found["inputs"][:, 0] % 3, found["label"])
    path.write_text("a,b\n" + "\n".join(f"{number},{(1, 1.5, 2)[number % 3]}" for number in range(30)))
    source = sources.table("all", path=str(path), label="b", kind="class")
    assert source.classes == ["1", "1.5", "2"] and set(read(source)["label"]) == {0, 1, 2}


# text


def test_a_text_is_pieces_with_the_next_characters(tmp_path):
    path = tmp_path / "song.txt"
    path.write_text("\ufeff" + "so la ti do é " * 30, encoding="utf-8")  # The mark of the byte order is left out.
    source = sources.text("all", path=str(path), length=10)
    found = read(source)
    assert found["inputs"].shape == (41, 10) and source.num_classes == len(source.classes) == len(set("so la ti do é "))
    texts = {"".join(source.classes[number] for number in piece) for piece in found["inputs"]}
    assert "so la ti d" in texts
    np.testing.assert_array_equal(found["inputs"][:, 1:], found["targets"][:, :-1])
    both(lambda split: sources.text(split, path=str(path), length=10))
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValueError, match=r"is not encoded in UTF-8"):
        sources.text("train", path=str(path))
    with pytest.raises(ValueError, match=r"--config=configs/char_gpt\.py:.*song\.txt is not encoded in UTF-8"):
        char_gpt.get_config(str(path))
    path.write_text("short")
    with pytest.raises(ValueError, match=r"length must be at least 1\. Received: 0"):
        sources.text("train", path=str(path), length=0)
    with pytest.raises(ValueError, match=r"has 5 characters, and length=64 needs at least 129"):
        sources.text("train", path=str(path))


# Python objects

MODULE = """
import numpy as np

class Features(dict):
    pass

class Names:
    names = ["zero", "one"]

class Rows:
    features = {"fine": Names()}
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        if i >= self.count:
            raise IndexError(i)
        return {"img": np.full((3, 2), i, np.uint8), "fine": i % 2, "name": f"no {i}"}

def load(split, count=9):
    return Rows(count if split == "train" else 4)

def pairs():
    return [(np.float32([i, i]), i % 2) for i in range(10)]

def zeros():
    return [{"pixels": bytes(size), "name": "a\\0"} for size in (4, 2)]

def numbers(split):
    return [{"x": np.array(one)} for one in (0, 2.5)]

def wraps(split):
    return [{"x": np.array([7], np.uint8)}, {"x": np.array([300], np.uint16)}]


class Named(list):
    features = np.zeros([3, 2])  # Not those of Hugging Face.


def named(split):
    return Named([{"x": np.float32(i)} for i in range(3)])

def halves(split):
    return [(np.float32([0]), 1.5)] * 4

def one_column(split):
    return [{"x": np.float32([i, i])} for i in range(4)]

def texts(split):
    return [(np.float32([0]), "cat")] * 4

def uneven():
    return [{"x": np.zeros(i + 1)} for i in range(4)]

def grained(split):
    import grain
    return grain.MapDataset.range(12).map(lambda i: {"inputs": np.float32([i])})
"""


def test_any_object_with_len_and_items_is_a_source(tmp_path, monkeypatch):
    (tmp_path / "indexed_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {"image": "img", "label": "fine"}
    source = sources.indexed("train[:5]", dataset="indexed_data:load", keys=keys)
    found = read(source)
    assert found["image"].shape == (5, 3, 2, 1) and found["image"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert found["label"].dtype == np.int64 and found["label"].tolist() == [0, 1, 0, 1, 0]
    assert source.classes == ["zero", "one"] and source.num_classes == 2
    assert read(sources.indexed("test", dataset="indexed_data:load"))["name"].tolist() == [
        b"no %d" % i for i in range(4)
    ]
    assert len(sources.indexed("train", dataset="indexed_data:load", arguments={"count": 3})) == 3
    found = both(lambda split: sources.indexed(split, dataset="indexed_data:pairs", test_fraction=0.3))
    assert len(found["test"]["label"]) == 3 and found["train"]["image"].shape == (7, 2)
    found = read(sources.indexed("all", dataset="indexed_data:zeros", test_fraction=0.5))
    assert sorted(map(len, found["pixels"])) == [2, 4] and set(found["name"]) == {b"a\0"}
    with pytest.raises(ValueError, match=r"example 0 has no 'image'. It has: img, fine, name"):
        sources.indexed("train", dataset="indexed_data:load", keys={"image": "image"})
    with pytest.raises(tf.errors.OpError, match=r"'x' of example \d is float64 \(\d,\), and of the first one"):
        read(sources.indexed("all", dataset="indexed_data:uneven", test_fraction=0.5))
    for wrong, words in (
        ("numbers", r"'x' of example 1 is float64 \(\), and of the first one int64"),
        ("wraps", r"'x' of example 1 is uint16 \(1,\), and of the first one uint8"),
        ("halves", r"a label is a whole number. Received: 1.5 for example 0"),
        ("texts", r"a label is a whole number. Received: cat for example 0. Number the classes"),
    ):
        with pytest.raises((ValueError, tf.errors.OpError), match=words):
            read(sources.indexed("train", dataset=f"indexed_data:{wrong}"))
    assert read(sources.indexed("train", dataset="indexed_data:named"))["x"].tolist() == [0, 1, 2]
    # A source of one column is read outside of a graph too.
    found = sources.indexed("train", dataset="indexed_data:one_column").read(tf.constant([1, 0], tf.int64))
    assert found["x"].numpy().tolist() == [[1, 1], [0, 0]]
    with pytest.raises(ValueError, match=r"must return an object with len\(\) and \[i\]. Received: int"):
        sources.indexed("train", dataset="operator:length_hint")


def test_a_map_dataset_of_grain_is_a_source(tmp_path, monkeypatch):
    pytest.importorskip("grain")
    (tmp_path / "grain_data.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    source = sources.indexed("train[2:]", dataset="grain_data:grained")
    assert read(source)["inputs"][:, 0].tolist() == [*range(2, 12)]


# TFRecord


def example(number):
    def of(**kind):
        return tf.train.Feature(**kind)

    picture = tf.io.encode_png(np.full((4, 4, 3), number, np.uint8)).numpy()
    features = {
        "image/encoded": of(bytes_list=tf.train.BytesList(value=[picture])),
        "label": of(int64_list=tf.train.Int64List(value=[number % 3])),
        "raw": of(bytes_list=tf.train.BytesList(value=[np.int16([number, -number]).tobytes()])),
        "point": of(float_list=tf.train.FloatList(value=[number, number / 2])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


FEATURES = {
    "image": {"key": "image/encoded", "decode": "image", "size": [2, 2]},
    "label": {"dtype": "int64"},
    "raw": {"decode": "raw", "dtype": "int16", "shape": [2]},
    "point": {"shape": [2]},
}


def test_tfrecord_files_are_read_by_a_description(tmp_path):
    for part, numbers in {"train-0": range(8), "train-1": range(8, 12), "test-0": range(50, 53)}.items():
        with tf.io.TFRecordWriter(str(tmp_path / f"{part}.tfrecord")) as writer:
            for number in numbers:
                writer.write(example(number))
    path = str(tmp_path / "{split}-*.tfrecord")
    source = sources.tfrecord("train[2:]", path=path, features=FEATURES, classes=["a", "b", "c"])
    found = read(source)
    assert source.num_classes == 3 and found["point"][:, 0].tolist() == [*range(2, 12)]
    assert found["image"].shape == (10, 2, 2, 3) and found["image"][:, 0, 0, 0].tolist() == [*range(2, 12)]
    shape = source.read(tf.range(3, dtype=tf.int64))["raw"].shape
    assert (
        shape == (3, 2)
        and found["raw"][-1].tolist() == [11, -11]
        and found["label"].tolist() == [n % 3 for n in range(2, 12)]
    )
    assert len(sources.tfrecord("test", path=path, features=FEATURES)) == 3
    whole = str(tmp_path / "train-*.tfrecord")
    both(lambda split: sources.tfrecord(split, path=whole, features={"point": {"shape": [2]}}))
    source.verify()
    damaged = bytearray((tmp_path / "test-0.tfrecord").read_bytes())
    damaged[damaged.index(np.float32(51).tobytes()) + 1] ^= 1  # Another number: only the checksum shows it.
    (tmp_path / "other-0.tfrecord").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"other-0.tfrecord' is damaged: corrupted record at \d+"):
        sources.tfrecord("other", path=path, features=FEATURES).verify()
    # Other records in files of the same sizes: the places of the records are looked up again.
    with tf.io.TFRecordWriter(str(tmp_path / "test-0.tfrecord")) as writer:
        for number in (52, 51, 50):
            writer.write(example(number))
    assert read(sources.tfrecord("test", path=path, features=FEATURES))["point"][:, 0].tolist() == [52, 51, 50]
    for index in tmp_path.glob(".tfdist-*.npy"):  # A crash of the host has left it empty.
        index.write_bytes(b"")
    assert read(sources.tfrecord("test", path=path, features=FEATURES))["point"][:, 0].tolist() == [52, 51, 50]
    assert any(index.stat().st_size for index in tmp_path.glob(".tfdist-test-*.npy"))
    with pytest.raises(FileNotFoundError, match=r"there are no files .*valid-"):
        sources.tfrecord("valid", path=path, features=FEATURES)
    for wrong, words in (
        ({"image": {"decode": "image"}}, r"features\['image'\]=.* needs \"size\""),
        ({"a": {"dtype": "int16"}}, r"must have the dtype"),
        ({"a": {"dtype": "blue"}}, r"'blue'.* unknown dtype"),
        ({"a": {"form": [2]}}, r"may have channels, decode"),
    ):
        with pytest.raises(ValueError, match=words):
            sources.tfrecord("train", path=path, features=wrong)
    with pytest.raises(
        ValueError, match=r"the record at byte 12 of .*train-0.* cannot be read|the record at byte 0 of"
    ):
        sources.tfrecord("train", path=path, features={"other": {"shape": [2]}}).verify()
    with pytest.raises(ValueError, match=r"the record at byte 0 of .*train-0.* cannot be read"):
        sources.tfrecord("train", path=path, features={"raw": {**FEATURES["raw"], "shape": [1]}}).verify()


def test_raw_records_have_a_known_number_of_rows(tmp_path):
    """Which a model needs."""
    with tf.io.TFRecordWriter(str(tmp_path / "train-0.tfrecord")) as writer:
        writer.write(example(1))
    source = sources.tfrecord("all", path=str(tmp_path / "train-*"), features={"raw": FEATURES["raw"]})
    read_rows = tf.function(source.read, input_signature=[tf.TensorSpec([5], tf.int64)])
    assert read_rows.get_concrete_function().structured_outputs["raw"].shape == (5, 2)
