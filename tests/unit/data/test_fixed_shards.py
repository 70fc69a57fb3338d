"""Fixed shards: memory and disk of a worker decrease with the number of workers."""

import sys
import textwrap

import forked
import numpy as np
import pytest
import tensorflow as tf

from tfdist import config
from tfdist.data import cache, fixed_shards, stream
from tfdist.zoo import sources

EXAMPLES = 8_000
MEBIBYTES = 64


# Prints by how many MiB a process grows with its part; the pages of files are left out.
GROWTH = """
    import gc, pathlib, re, sys
    import tensorflow as tf
    from tfdist.data import fixed_shards, stream
    from tfdist.zoo import sources

    def held():
        gc.collect()
        return int(re.findall(r"RssAnon:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[0]) / 1024

    path, count = sys.argv[1], int(sys.argv[2])
    tf.constant(0)
    before = held()
    shard = stream.ReplicaShard(first_replica=count - 1, num_replicas=count)
    part, _ = fixed_shards.divide(sources.npz("train", path=path), shard, "train")
    part.read(tf.range(5, dtype=tf.int64))
    print(held() - before)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An .npz file of 64 MiB; example i begins with the bytes of i."""
    file = tmp_path_factory.mktemp("data") / "examples.npz"
    images = np.random.default_rng(0).integers(0, 256, (EXAMPLES, MEBIBYTES * 2**20 // EXAMPLES), np.uint8)
    images[:, :2] = np.arange(EXAMPLES, dtype=np.uint16)[:, np.newaxis].view(np.uint8)
    np.savez(file, image_train=images[..., np.newaxis, np.newaxis], label_train=np.arange(EXAMPLES) % 10)
    return str(file)


def numbers(batch) -> np.ndarray:
    return batch["image"].numpy()[:, :2, 0, 0].copy().view(np.uint16)[:, 0]


@pytest.mark.workers
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("count", [2, 4])
def test_memory_of_a_worker_decreases_with_the_number_of_workers(path, count):
    command = [sys.executable, "-c", textwrap.dedent(GROWTH), path, str(count)]
    result = forked.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert MEBIBYTES / count * 0.8 < float(result.stdout) < MEBIBYTES / count + 12


def test_disk_of_a_worker_decreases_with_the_number_of_workers(path, tmp_path):
    for count in (2, 4):
        shard = stream.ReplicaShard(first_replica=count - 1, num_replicas=count)
        part, found = fixed_shards.divide(sources.npz("train", path=path), shard, "train")
        assert len(part) == len(found) == EXAMPLES // count
        rows = tf.range(5, dtype=tf.int64)
        np.testing.assert_array_equal(numbers(part.read(rows)), found.ids(rows))
        np.testing.assert_array_equal(found.ids(rows), np.arange(5) * count + count - 1)
        options = config.Data(cache="raw", cache_dir=str(tmp_path), shards="fixed")
        kept, _ = cache.cached(options, part, None, training=True)
        size = sum(file.stat().st_size for file in kept.fill().iterdir()) / 2**20
        assert size == pytest.approx(MEBIBYTES / count, rel=0.02)
        np.testing.assert_array_equal(numbers(kept.read(rows)), found.ids(rows))


def test_each_part_has_its_own_cache_and_too_many_workers_are_refused():
    names = set()
    for rank in range(3):
        shard = stream.ReplicaShard(first_replica=rank, num_replicas=3)
        part, _ = fixed_shards.divide(sources.digits("train"), shard, "train")
        names.add(cache.cached(config.Data(cache="raw"), part, None, training=True)[0].name)
    assert len(names) == 3
    with pytest.raises(ValueError, match=r'shards="fixed" needs an example for each of the 3 workers.*train\[:2\]'):
        fixed_shards.divide(sources.digits("train[:2]"), shard, "train[:2]")
