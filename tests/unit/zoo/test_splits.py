"""Splits in tfds' notation, compared with what tfds itself makes of them."""

import pytest
from tensorflow_datasets.core import splits as tfds_splits

from tfdist.zoo.splits import resolve, split_name

SLICES = (
    *("[:90%]", "[90%:]", "[10%:20%]", "[:-5%]", "[-5%:]", "[-100%:]", "[33.3%:66.6%]", "[0:10%]", "[10:20%]", "[0:1]"),
    *("[12.5%:]", "[:99.95%]", "[:0.5%]", "[5:]", "[:5]", "[-5:]", "[:-5]", "[2:-2]", "[1_0:2_0]"),
)


@pytest.mark.parametrize("length", [25, 30, 101, 1797, 50_000])
def test_slices_are_those_of_tfds(length):
    infos = tfds_splits.SplitDict([tfds_splits.SplitInfo(name="train", shard_lengths=[length], num_bytes=0)])
    compared = 0
    for text in SLICES:
        (theirs,) = tfds_splits.AbstractSplit.from_spec(f"train{text}").to_absolute(infos)
        expected = (theirs.from_ or 0, length if theirs.to is None else theirs.to)
        if expected[0] < expected[1]:
            assert tuple(resolve(f"train{text}", {"train": length}, source="x")[1:]) == expected, text
            compared += 1
    assert compared >= 16


@pytest.mark.parametrize(
    "split, words",
    [
        *(("valid", "'valid'.* test, train"), ("train+test", "'train[+]test'")),
        *((text, "is not valid") for text in ("train[:1.5]", "train[", "train[5]", "train[a:b]", "train[:]", "")),
        *((text, "exceeds.* 100 examples") for text in ("train[:101]", "train[:101%]")),
        *((text, "empty.* 100 examples") for text in ("train[50:50]", "train[60%:40%]", "train[:0.1%]")),
        ("test", "empty.* 0 examples"),
    ],
)
def test_messages_name_the_split_and_what_there_is(split, words):
    with pytest.raises(ValueError, match=f"digits.*{words}"):
        resolve(split, {"train": 100, "test": 0}, source="digits")


def test_split_name_needs_no_lengths():
    assert split_name("train[:90%]", ["test", "train"], source="x") == "train"
    with pytest.raises(ValueError, match="none"):
        split_name("train", [], source="x")
