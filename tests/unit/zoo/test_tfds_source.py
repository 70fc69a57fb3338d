"""The tfds source, on small data sets that tfds itself writes: both formats, all ways to read, all ways to fail."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets
from parameters import slow_except
from small_images import COUNTS, SmallImages, picture
from test_sources import read_all

from tfdist.zoo import sources


class UnevenImages(SmallImages):
    """Images of several sizes, and no pair to learn from."""

    def _info(self):
        types = tensorflow_datasets.features
        features = types.FeaturesDict({"image": types.Image(shape=(None, None, 3)), "key": types.Text()})
        return tensorflow_datasets.core.DatasetInfo(builder=self, features=features)

    def _generate_examples(self, split):
        for number in range(COUNTS[split]):
            yield str(number), {"image": picture(number), "key": str(number)}


class BrokenImages(SmallImages):
    """Its download ends with an error."""

    def _split_generators(self, dl_manager):
        raise OSError("connection reset")


def write(builder, folder, file_format):
    config = tensorflow_datasets.download.DownloadConfig(num_shards=4)
    builder(data_dir=str(folder), file_format=file_format).download_and_prepare(download_config=config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{format: a folder of prepared data sets}, to be read only."""
    root = tmp_path_factory.mktemp("prepared")
    for file_format in ("tfrecord", "array_record"):
        write(SmallImages, root / file_format, file_format)
    write(UnevenImages, root / "array_record", "array_record")
    return {path.name: str(path) for path in root.iterdir()}


WAYS = [("tfrecord", 2048), ("tfrecord", 0), ("array_record", 2048), ("array_record", 0)]
EVERYTHING = {"image": "image", "label": "coarse", "key": "key"}


def test_every_way_of_reading_gives_what_was_written_in_the_same_order(folders):
    results = []
    for file_format, limit in WAYS:
        source = sources.tfds(
            "train", name="small_images", data_dir=folders[file_format], features=EVERYTHING, memory_limit_mb=limit
        )
        assert "read from files" in repr(source)  # Texts are not kept in memory.
        assert len(source) == 61 and source.num_classes == 7
        results.append(read_all(source))
    assert sorted(int(key) for key in results[0]["key"]) == list(range(61))
    for row, key in enumerate(results[0]["key"]):
        np.testing.assert_array_equal(results[0]["image"][row], picture(key)[:5])
        assert results[0]["label"][row] == int(key) % 7
    for result in results[1:]:
        for key, values in results[0].items():
            np.testing.assert_array_equal(result[key], values)


@pytest.mark.parametrize("file_format, limit", slow_except(WAYS, [("array_record", 0)]))
def test_slices_cross_shards(folders, file_format, limit):
    def source(split):
        return sources.tfds(split, name="small_images", data_dir=folders[file_format], memory_limit_mb=limit)

    assert ("in memory" in repr(source("train"))) == (limit > 0)
    whole = read_all(source("train"))
    assert set(whole) == {"image", "label"} and whole["label"].dtype == np.int64
    first, last = source("train[:30%]"), source("train[30%:]")
    assert len(first) == 18 and len(last) == 43
    for key, values in whole.items():
        np.testing.assert_array_equal(np.concatenate([read_all(first)[key], read_all(last)[key]]), values)
    ids = tf.constant([42, 0, 17, 17, 30], tf.int64)
    np.testing.assert_array_equal(last.read(ids)["image"], whole["image"][18 + ids.numpy()])
    spec = tf.data.Dataset.range(8).batch(4, drop_remainder=True).map(last.read).element_spec
    assert spec["image"].shape == (4, 5, 4, 3) and spec["label"].shape == (4,)


def test_images_of_several_sizes_need_a_size(folders):
    keywords = dict(name="uneven_images", data_dir=folders["array_record"])
    with pytest.raises(ValueError, match=r"has no supervised pair: set features=.*image, key"):
        sources.tfds("train", **keywords)
    with pytest.raises(ValueError, match=r"'image' has no fixed shape .*None, None, 3.*size=\(height, width\)"):
        sources.tfds("train", **keywords, features={"image": "image"})
    for limit in (2048, 0):
        source = sources.tfds("test", **keywords, features={"image": "image"}, size=[3, 2], memory_limit_mb=limit)
        images = read_all(source)["image"]
        assert images.shape == (9, 3, 2, 3) and images.dtype == np.uint8 and source.num_classes is None
        source.verify()
    names = sources.tfds("test", **keywords, features={"name": "key"})
    assert sorted(read_all(names)["name"].tolist()) == [str(k).encode() for k in range(9)]


def test_a_missing_data_set_is_downloaded_once_or_named(tmp_path):
    """Without `download`: tests/workers/test_errors.py."""
    for _ in range(2):  # It fetches once.
        source = sources.tfds("test", name="small_images:1.0.0", data_dir=str(tmp_path), download=True)
        assert len(source) == 9
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileNotFoundError, match="'small_images' could not be downloaded"):
        sources.tfds("test", name="small_images", data_dir=str(tmp_path / "file"), download=True)


def test_a_download_that_fails_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'broken_images' .*connection reset"):
        sources.tfds("test", name="broken_images", data_dir=str(tmp_path / "new" / "data"), download=True)
    assert not list(tmp_path.glob("new/data/*_images/1.0.0/dataset_info.json"))


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"name": "small_image"}, "(?s)'small_image'.*catalog"),
        ({"name": "small_images:7.0.0"}, "'small_images:7.0.0'"),
        ({"features": {"image": "picture"}}, "'picture'.*coarse, image, key, label, mask, tags"),
        ({"features": {"tags": "tags"}}, "'tags' .*None"),
        ({"size": 3}, r"size .*\(height, width\).*3"),
    ],
)
def test_messages_name_what_is_wrong(folders, keywords, words):
    keywords = {"split": "train", "name": "small_images", "data_dir": folders["tfrecord"], **keywords}
    with pytest.raises(ValueError, match=words):
        sources.tfds(**keywords)


def damaged(tmp_path, file_format, how):
    """A data set whose third shard of the train split is damaged; returns that file."""
    write(SmallImages, tmp_path, file_format)
    (path,) = tmp_path.glob("small_images/1.0.0/*train*00002-of-00004")
    data = bytearray(path.read_bytes())
    if how == "cut off":
        del data[len(data) * 2 // 3 :]
    elif how == "overwritten":
        data[len(data) // 2 : len(data) // 2 + 40] = b"x" * 40
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "file_format, limit, how",
    slow_except(
        [(*way, how) for way in WAYS for how in ("cut off", "overwritten")],
        [("tfrecord", 2048, "cut off"), ("array_record", 0, "overwritten")],
    ),
)
def test_a_damaged_record_is_named(tmp_path, file_format, limit, how):
    path = damaged(tmp_path, file_format, how)
    with pytest.raises(ValueError, match=rf"'{re.escape(str(path))}' (is cut off|cannot be read)"):
        source = sources.tfds("train", name="small_images", data_dir=str(tmp_path), memory_limit_mb=limit)
        source.verify()
    if file_format == "array_record":  # Of the other one it is found while its records are counted.
        with pytest.raises((ValueError, tf.errors.OpError)) as caught:
            read_all(source)
        assert not limit or (isinstance(caught.value, ValueError) and str(path) in str(caught.value))


def test_a_missing_file_is_named(tmp_path):
    path = damaged(tmp_path, "array_record", "nothing")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"'{re.escape(str(path))}'"):
        sources.tfds("train", name="small_images", data_dir=str(tmp_path))
    assert len(sources.tfds("train[:10]", name="small_images", data_dir=str(tmp_path))) == 10
