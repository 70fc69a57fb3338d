"""Splits in tfds' notation, compared with what tfds itself makes of them."""

import pytest
from tensorflow_datasets.core import splits as tfds_splits

from tfdist.zoo.splits import resolve, split_name

SLICES = (
    *("[:]", "[:90%]", "[90%:]", "[10%:20%]", "[:-5%]", "[-5%:]", "[-100%:]", "[33.3%:66.6%]", "[0:10%]", "[10:20%]"),
    *("[12.5%:]", "[:99.95%]", "[:0.5%]", "[5:]", "[:5]", "[-5:]", "[:-5]", "[2:-2]", "[1_0:2_0]", "[0:1]"),
)


@pytest.mark.parametrize("length", [25, 30, 101, 1797, 50_000])
def test_slices_are_those_of_tfds(length):
    infos = tfds_splits.SplitDict([tfds_splits.SplitInfo(name="train", shard_lengths=[length], num_bytes=0)])
    compared = 0
    for text in SLICES:
        try:
            (theirs,) = tfds_splits.AbstractSplit.from_spec(f"train{text}").to_absolute(infos)
        except ValueError:
            assert text == "[:]"  # tfds refuses a slice without bounds, and so do we.
            with pytest.raises(ValueError, match="is not valid"):
                resolve(f"train{text}", {"train": length}, source="x")
            continue
        expected = (theirs.from_ or 0, length if theirs.to is None else theirs.to)
        if expected[0] < expected[1]:
            assert tuple(resolve(f"train{text}", {"train": length}, source="x")[1:]) == expected, text
            compared += 1
    assert compared >= 16


def test_complementary_slices_make_the_whole():
    for length in range(1, 400, 7):
        for percent in (10, 33, 50, 90):
            lengths = {"a": length}
            parts = []
            for text in (f"a[:{percent}%]", f"a[{percent}%:]"):
                try:
                    parts += range(*resolve(text, lengths, source="x")[1:])
                except ValueError as error:
                    assert "is empty" in str(error)
            assert parts == list(range(length))


@pytest.mark.parametrize(
    "split, words",
    [
        ("valid", ["digits", "'valid'", "test, train"]),
        ("train[", ["is not valid", "train[:90%]"]),
        ("train[5]", ["is not valid"]),
        ("train[a:b]", ["is not valid"]),
        ("train[:1.5]", ["fractional"]),
        ("train+test", ["no split 'train+test'"]),
        ("", ["is not valid"]),
        ("train[:101]", ["exceeds", "100 examples"]),
        ("train[:101%]", ["exceeds", "100 examples"]),
        ("train[50:50]", ["empty", "100 examples"]),
        ("train[60%:40%]", ["empty"]),
        ("train[:0.1%]", ["empty"]),
        ("test", ["empty", "0 examples"]),
    ],
)
def test_messages_name_the_split_and_what_there_is(split, words):
    with pytest.raises(ValueError) as caught:
        resolve(split, {"train": 100, "test": 0}, source="digits")
    for word in [*words, "digits"]:
        assert word in str(caught.value)


def test_split_name_needs_no_lengths():
    assert split_name("train[:90%]", ["test", "train"], source="x") == "train"
    with pytest.raises(ValueError, match="It has: none"):
        split_name("train", [], source="x")
