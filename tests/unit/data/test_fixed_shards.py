"""Fixed shards: memory and disk of a worker decrease with the number of workers."""

import os
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
from launching import python

from tfdist import config
from tfdist.configs.networks import imagenet
from tfdist.data import cache, fixed_shards, inspection, order, stream
from tfdist.zoo import sources

# Prints by how many MiB a process grows with its part, of its own memory; and writes the part to a cache.
GROWTH = """
    import gc, pathlib, re, sys
    import numpy as np, tensorflow as tf
    from tfdist import config
    from tfdist.data import cache, fixed_shards, stream
    from tfdist.zoo import sources

    def held():
        gc.collect()
        return int(re.findall(r"RssAnon:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[0]) / 1024

    tf.constant(0)
    before = held()
    shard = stream.ReplicaShard(first_replica=3, num_replicas=4)
    part = fixed_shards.divide(sources.npz("train", path=sys.argv[1]), shard, "train", "fixed")
    found = part.worker_examples
    rows = tf.range(5, dtype=tf.int64)
    part.read(rows)
    grown = held() - before
    kept = cache.add_cache(config.Data(cache="raw", cache_dir=sys.argv[2]), part, "train")
    assert len(part) == len(found) and found.ids(rows).numpy().tolist() == [3, 7, 11, 15, 19]
    for read in (part, kept):
        assert read.read(rows)["label"].numpy().tolist() == [3, 7, 11, 15, 19]
    print(grown, kept.fill().stat().st_size / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_disk_of_a_worker_decrease_with_the_number_of_workers(tmp_path):
    """A quarter of 64 MiB."""
    images = np.random.default_rng(0).integers(0, 256, (8000, 8192, 1, 1), np.uint8)
    np.savez(tmp_path / "examples.npz", image_train=images, label_train=np.arange(8000))
    words = (tmp_path / "examples.npz", tmp_path / "cache")
    memory, disk = map(float, python("-c", textwrap.dedent(GROWTH), *words).stdout.split())
    assert 12 < memory < 28 and disk == pytest.approx(62.5 / 4, rel=0.02)


def write_records(folder):
    """Writes 40 images to four files in the layout of ImageNet; the label of an image is its number."""
    image = tf.io.encode_png(tf.zeros([2, 2, 3], tf.uint8)).numpy()
    for file in range(4):
        with tf.io.TFRecordWriter(str(folder / f"train-{file:05d}-of-00004")) as writer:
            for number in range(10 * file, 10 * file + 10):
                made = tf.train.Example()
                made.features.feature["image/encoded"].bytes_list.value.append(image)
                made.features.feature["image/class/label"].int64_list.value.append(number)
                writer.write(made.SerializeToString())


@pytest.mark.parametrize(("shards", "own_files"), [("contiguous", [{0, 1}, {2, 3}]), ("fixed", [{0, 1, 2, 3}] * 2)])
def test_a_worker_with_contiguous_shards_reads_only_its_files(tmp_path, shards, own_files):
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        write_records(folder)
        source = imagenet.imagenet("train", path=str(folder), num_classes=40, first_label=0)
        shard = stream.ReplicaShard(first_replica=rank, num_replicas=2)
        part = fixed_shards.divide(source, shard, "train", shards)
        # What it does not need may be missing.
        for file in {0, 1, 2, 3} - own_files[rank]:
            (folder / f"train-{file:05d}-of-00004").unlink()
        rows = tf.range(len(part), dtype=tf.int64)
        labels = part.read(rows)["label"].numpy()
        np.testing.assert_array_equal(labels, part.worker_examples.ids(rows))
        assert {label // 10 for label in labels} == own_files[rank] and len(labels) == 20


def test_the_parts_of_uneven_splits_have_each_example_once():
    for total, count in ((11, 3), (5, 5), (1_281_167, 16)):
        for contiguous in (False, True):
            parts = [
                order.WorkerExamples(total=total, index=index, count=count, contiguous=contiguous)
                for index in range(count)
            ]
            found = [np.asarray(part.ids(np.arange(len(part)))) for part in parts]
            np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.arange(total))
            assert {len(part) for part in parts} <= {total // count, -(-total // count)}


def test_each_part_has_its_own_cache_and_too_many_workers_are_refused():
    names = set()
    for rank in range(3):
        shard = stream.ReplicaShard(first_replica=rank, num_replicas=3)
        for shards in ("fixed", "contiguous"):
            part = fixed_shards.divide(sources.digits("train"), shard, "train", shards)
            names.add(cache.add_cache(config.Data(cache="raw"), part, "train").name)
    assert len(names) == 6
    with pytest.raises(ValueError, match=r'shards="fixed" needs an example for each of the 3 workers.*train\[:2\]'):
        fixed_shards.divide(sources.digits("train[:2]"), shard, "train[:2]", "fixed")


def test_a_cache_of_a_part_is_made_anew_if_a_file_changes(tmp_path):
    folder, found = tmp_path / "images" / "train" / "a", []
    folder.mkdir(parents=True)
    for value in (10, 99):
        for number in range(4):
            image = tf.io.encode_png(tf.fill([2, 2, 3], tf.constant(value, tf.uint8))).numpy()
            (folder / f"{number}.png").write_bytes(image)
            os.utime(folder / f"{number}.png", (value, value))
        source = sources.image_folder("train", path=str(tmp_path / "images"), memory_limit_mb=0)
        part = fixed_shards.divide(source, stream.ReplicaShard(num_replicas=2), "train", "fixed")
        options = config.Data(cache="raw", cache_dir=str(tmp_path / "cache"), shards="fixed")
        kept = cache.add_cache(options, part, "train")
        kept.fill()
        found.append(int(kept.read(tf.range(1, dtype=tf.int64))["image"][0, 0, 0, 0]))
    assert found == [10, 99]


@pytest.mark.parametrize("shards", ["fixed", "contiguous"])
def test_a_label_is_found_in_a_part_and_has_its_number_in_the_split(tmp_path, shards):
    labels = np.arange(20) % 10
    np.savez(tmp_path / "data.npz", x_train=np.zeros((20, 2, 2), np.uint8), y_train=labels)
    whole = sources.npz("train", path=str(tmp_path / "data.npz"))
    part = fixed_shards.divide(whole, stream.ReplicaShard(first_replica=1, num_replicas=2), "train", shards)
    expected = next(number for number in part.worker_examples.examples() if labels[number] == 7)
    found = inspection.example_with_label({"test": None, "train": part}, "label", 7)
    assert found == f"Example {expected} of the split 'train', the first in the part of worker 1,"
