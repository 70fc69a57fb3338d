"""Sources of the data that people have: .npz of any names, tables, text, Python objects, TFRecord files."""

import json
import types

import numpy as np
import pytest
import tensorflow as tf
from test_sources import read_all

from tfdist.configs.networks import char_gpt
from tfdist.zoo import sources
from tfdist.zoo.sources.table import encode
from tfdist.zoo.sources.table import read as read_table


def rows(values):
    return sorted(np.asarray(values).reshape(len(values), -1).tolist())


def both(make):
    """The splits "train" and "test", which together are "all"; returns what each holds."""
    found = {split: read_all(make(split)) for split in ("train", "test", "all")}
    key = next(iter(found["all"]))
    assert rows([*found["train"][key], *found["test"][key]]) == rows(found["all"][key])
    return found


def test_npz_without_splits_is_divided_by_ratio_if_its_arrays_are_named(tmp_path):
    path = str(tmp_path / "x.npz")
    x, y = np.arange(40).reshape(20, 2).astype(np.float32), np.arange(20) % 4
    np.savez(path, x=x, y=y)
    keys = {"inputs": "x", "label": "y"}
    found = both(lambda split: sources.npz(split, path=path, keys=keys, test_fraction=0.25))
    assert len(found["train"]["label"]) == 15 and len(found["test"]["label"]) == 5
    np.testing.assert_array_equal(found["test"]["inputs"][:, 0] // 2 % 4, found["test"]["label"])  # Rows stay together.
    assert len(sources.npz("train[:80%]", path=path, keys=keys)) == 13
    with pytest.raises(ValueError, match=r"'train'.* x, y\. .*keys="):
        sources.npz("train", path=path)
    np.savez(path, photos=np.zeros((20, 4, 4), np.uint8), species=y % 2, names=np.array(["cat", "dog"])[y % 2])
    source = sources.npz("all", path=path, keys={"image": "photos", "label": "species"})
    assert source.num_classes == 2 and read_all(source)["image"].shape == (20, 4, 4, 1)
    with pytest.raises(ValueError, match="labels must be integers"):
        sources.npz("all", path=path, keys={"image": "photos", "label": "names"})
    with pytest.raises(ValueError, match=r"'x'.* photos, species, names"):
        sources.npz("all", path=path, keys={"image": "x"})
    np.savez(path, y=y.astype("M8[D]"))
    with pytest.raises(ValueError, match=r"'targets' .*datetime64\[D\] \[20\]"):
        sources.npz("train", path=path, keys={"targets": "y"})


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
    found = read_all(source)
    # size (the missing one is the mean), blue, green, red, old.
    expected = [[1.5, 0, 0, 1, 1, 0], [2.5, 1, 0, 0, 0, 1], [8.5 / 3, 0, 0, 1, 1, 0], [4.5, 0, 1, 0, 0, 1]]
    np.testing.assert_allclose(rows(np.column_stack([found["inputs"], found["label"]])), sorted(expected), rtol=1e-6)
    columns = json.loads(json.dumps(source.columns))  # As data.json holds it.
    assert columns["colour"] == {"role": "input", "kind": "category", "values": ["blue", "green", "red"]}
    assert columns["species"] == {"role": "label", "kind": "class", "values": ["cat", "dog"]}
    np.testing.assert_allclose(encode(read_table(path).iloc[[3]], columns), [expected[3][:-1]])
    both(lambda split: sources.table(split, path=path, label="species", ignore=["id"]))
    with pytest.raises(ValueError, match=r"1 rows .*'size'.* row 2"):
        sources.table("train", path=path, label="size", ignore=["id"], kind="number")
    read_table(path).astype({"old": "boolean"}).to_parquet(tmp_path / "old.parquet")
    old = sources.table("all", path=str(tmp_path / "old.parquet"), label="old", ignore=["id"])
    assert old.classes == ["0", "1"] and sorted(read_all(old)["label"]) == [0, 0, 1, 1]
    read_table(path).dropna().to_parquet(tmp_path / "animals.parquet")
    again = sources.table("all", path=str(tmp_path / "animals.parquet"), label="size", ignore=["id"], kind="number")
    assert again.num_classes is None and rows(read_all(again)["targets"]) == [[1.5], [2.5], [4.5]]


def test_a_large_table_has_one_type_in_each_column(tmp_path):
    lines = ["x,label", ",1", *["1,0"] * 400_000, "u,0", "1,0"]
    (tmp_path / "large.csv").write_text("\n".join(lines))
    frame = read_table(str(tmp_path / "large.csv"))
    assert set(frame["x"].dropna()) == {"1", "u"}


NAMES = "a,b\n" + "\n".join(f"name{number},{number % 3 + 1}" for number in range(200))


@pytest.mark.parametrize(
    ("content", "keywords", "words"),
    [
        (NAMES, {"label": "c"}, r"'c'.* a, b"),
        (NAMES, {"label": "b"}, r"'a' has 200 .*ignore=\['a'\]"),
        (NAMES, {"label": "b", "ignore": ["a"]}, "besides 'b'"),
        (NAMES, {"label": "a", "kind": "number"}, "'a' contains text"),
        (NAMES, {"label": "b", "kind": "words"}, 'kind must be "class", "number" or None'),
        ("b,a\n0,1,2\n1,3,4\n", {}, "cannot be read by pandas"),
        ("b;a\n1;2,5\n", {}, "'b'|cannot be read"),
        ('a,b\n"1,5",u\n2,v\n', {}, r"'a' holds numbers with commas.*ignore=\['a'\]"),
        ('a,b\n1,"1,5"\n2,"2,5"\n', {}, "'b' holds numbers with commas"),
        ("a,b\n1,1.5\n2,1e39\n", {}, "'b' has .*row 1"),
        ("a,b\n1,\xfc\n".encode("latin-1"), {}, "cannot be read by pandas: 'utf-8'"),
    ],
)
def test_a_table_that_would_be_read_wrongly_is_refused(content, keywords, words, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=words):
        sources.table("all", path=str(path), **({"label": "b"} | keywords))


def test_labels_of_a_table_that_begin_at_1_are_classes_from_0(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "\n".join(f"{number},{number % 3 + 1}" for number in range(30)))
    source = sources.table("all", path=str(path), label="b")
    found = read_all(source)
    assert source.classes == ["1", "2", "3"] and set(found["label"]) == {0, 1, 2}
    np.testing.assert_array_equal(found["inputs"][:, 0] % 3, found["label"])


def test_a_text_is_pieces_with_the_next_characters(tmp_path):
    path = tmp_path / "song.txt"
    path.write_text("\ufeff" + "so la ti do é " * 30, encoding="utf-8")  # The mark of the byte order is left out.
    source = char_gpt.text("all", path=str(path), length=10)
    found = read_all(source)
    assert found["inputs"].shape == (41, 10) and source.num_classes == len(source.classes) == len(set("so la ti do é "))
    assert "so la ti d" in {"".join(source.classes[number] for number in piece) for piece in found["inputs"]}
    np.testing.assert_array_equal(found["inputs"][:, 1:], found["targets"][:, :-1])
    both(lambda split: char_gpt.text(split, path=str(path), length=10))
    for content, length, words in ((b"\xff\xfe", 64, "UTF-8"), (b"short", 0, "length .*0"), (b"short", 64, "5 .*129")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            char_gpt.text("train", path=str(path), length=length)


class Rows:
    """A data set as Hugging Face's."""

    features = types.MappingProxyType({"fine": types.SimpleNamespace(names=["zero", "one"])})

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"img": np.full((3, 2), i, np.uint8), "fine": i % 2, "name": f"no {i}"}


class Named(list):
    features = np.zeros([3, 2])  # Not those of Hugging Face.


def load(split, count=9):
    return Rows(count if split == "train" else 4)


def pairs(split):
    return [(np.float32([i, i]), i % 2) for i in range(10)]


def zeros(split):
    return [{"pixels": bytes(size), "name": "a\0"} for size in (4, 2)]


def grained(split):
    return pytest.importorskip("grain").MapDataset.range(12).map(lambda i: {"inputs": np.float32([i])})


KINDS = {
    "numbers": [{"x": np.array(one)} for one in (0, 2.5)],
    "wraps": [{"x": np.array([7], np.uint8)}, {"x": np.array([300], np.uint16)}],
    "named": Named([{"x": np.float32(i)} for i in range(3)]),
    "halves": [(np.float32([0]), 1.5)] * 4,
    "texts": [(np.float32([0]), "cat")] * 4,
    "one_column": [{"x": np.float32([i, i])} for i in range(4)],
}


def made(split, kind):
    return KINDS[kind]


def indexed(split, name, **options):
    return sources.indexed(split, dataset=f"{__name__}:{name}", **options)


def test_any_object_with_len_and_items_is_a_source():
    source = indexed("train[:5]", "load", keys={"image": "img", "label": "fine"})
    found = read_all(source)
    assert found["image"].shape == (5, 3, 2, 1) and found["image"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert found["label"].dtype == np.int64 and found["label"].tolist() == [0, 1, 0, 1, 0]
    assert source.classes == ["zero", "one"] and source.num_classes == 2
    assert read_all(indexed("test", "load"))["name"].tolist() == [b"no %d" % i for i in range(4)]
    assert len(indexed("train", "load", arguments={"count": 3})) == 3
    found = read_all(indexed("train[:70%]", "pairs"))
    assert found["image"].shape == (7, 2) and found["label"].tolist() == [0, 1, 0, 1, 0, 1, 0]
    found = read_all(indexed("all", "zeros"))
    assert sorted(map(len, found["pixels"])) == [2, 4] and set(found["name"]) == {b"a\0"}
    assert read_all(indexed("train", "made", arguments={"kind": "named"}))["x"].tolist() == [0, 1, 2]
    # A source of one column is read outside of a graph too.
    found = indexed("train", "made", arguments={"kind": "one_column"}).read(tf.constant([1, 0], tf.int64))
    assert found["x"].numpy().tolist() == [[1, 1], [0, 0]]


def test_a_map_dataset_of_grain_is_a_source():
    pytest.importorskip("grain")
    assert read_all(indexed("train[2:]", "grained"))["inputs"][:, 0].tolist() == [*range(2, 12)]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("load", {"keys": {"image": "image"}}, "0 .*'image'.* img, fine, name"),
        ("made", {"arguments": {"kind": "numbers"}}, r"'x' of example 1 is float64 \(\), .*int64"),
        ("made", {"arguments": {"kind": "wraps"}}, r"'x' of example 1 is uint16 \(1,\), .*uint8"),
        ("made", {"arguments": {"kind": "halves"}}, r"1\.5 for example 0"),
        ("made", {"arguments": {"kind": "texts"}}, "cat for example 0"),
    ],
)
def test_objects_that_are_no_source_are_named(name, options, words):
    with pytest.raises((ValueError, tf.errors.OpError), match=words):
        read_all(indexed("train", name, **options))


def example(number):
    made = tf.train.Example()
    picture = tf.io.encode_png(np.full((4, 4, 3), number, np.uint8)).numpy()
    made.features.feature["image/encoded"].bytes_list.value.append(picture)
    made.features.feature["label"].int64_list.value.append(number % 3)
    made.features.feature["raw"].bytes_list.value.append(np.int16([number, -number]).tobytes())
    made.features.feature["point"].float_list.value.extend([number, number / 2])
    return made.SerializeToString()


FEATURES = {
    "image": {"key": "image/encoded", "decode": "image", "size": [2, 2]},
    "label": {"dtype": "int64"},
    "raw": {"dtype": "string"},
    "point": {"shape": [2]},
}


def write_records(path, numbers):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            writer.write(example(number))


def test_tfrecord_files_are_read_by_a_description(tmp_path):
    for part, numbers in {"train-0": range(8), "train-1": range(8, 12), "test-0": range(50, 53)}.items():
        write_records(tmp_path / f"{part}.tfrecord", numbers)
    path = str(tmp_path / "{split}-*.tfrecord")
    source = sources.tfrecord("train[2:]", path=path, features=FEATURES, classes=["a", "b", "c"])
    found = read_all(source)
    assert source.num_classes == 3 and found["point"][:, 0].tolist() == [*range(2, 12)]
    assert found["image"].shape == (10, 2, 2, 3) and found["image"][:, 0, 0, 0].tolist() == [*range(2, 12)]
    assert np.frombuffer(found["raw"][-1], np.int16).tolist() == [11, -11] and found["label"].tolist() == [
        n % 3 for n in range(2, 12)
    ]
    # The number of rows is known, which a model needs.
    read_rows = tf.function(source.read, input_signature=[tf.TensorSpec([5], tf.int64)])
    assert read_rows.get_concrete_function().structured_outputs["point"].shape == (5, 2)
    whole = str(tmp_path / "train-*.tfrecord")
    both(lambda split: sources.tfrecord(split, path=whole, features={"point": {"shape": [2]}}))
    source.verify()
    with pytest.raises(FileNotFoundError, match="valid-"):
        sources.tfrecord("valid", path=path, features=FEATURES)
    for wrong, words in (
        ({"image": {"decode": "image"}}, r"features\['image'\]=.* \"size\""),
        ({"a": {"dtype": "int16"}}, "dtype"),
        ({"a": {"dtype": "blue"}}, "'blue'"),
        ({"a": {"form": [2]}}, "channels, decode"),
        ({"other": {"shape": [2]}}, r"byte \d+ of .*train-0"),
        ({"raw": {"decode": "raw"}}, "decode_raw"),
    ):
        with pytest.raises(ValueError, match=words):
            sources.tfrecord("train", path=path, features=wrong).verify()


def test_the_places_of_records_are_looked_up_again_in_other_files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def points():
        source = sources.tfrecord("test", path=str(tmp_path / "{split}-*.tfrecord"), features=FEATURES)
        return read_all(source)["point"][:, 0].tolist()

    for numbers in ([50, 51, 52], [52, 51, 50]):  # Files of the same sizes.
        write_records(tmp_path / "test-0.tfrecord", numbers)
        assert points() == numbers
    for index in tmp_path.glob("tfdist/*.npy"):  # A crash of the host has left it empty.
        index.write_bytes(b"")
    assert points() == [52, 51, 50]
