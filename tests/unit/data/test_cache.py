"""Examples kept in memory and on disk: the same batches, written once, whole or not at all."""

import os
import pathlib
import subprocess
import sys
import tempfile

import forked
import numpy as np
import pytest
import tensorflow as tf
from launching import REPOSITORY, worker_environment
from processes import until

from tfdist import config as c
from tfdist.data import cache

# Keeps 1000 examples of a source that takes its time, in sys.argv[1]; says when it reads.
SLOW = """
import os, sys, time
import numpy as np, tensorflow as tf
from tfdist import config
from tfdist.data import cache
class Slow:
    def __len__(self): return 1000
    def read(self, ids):
        def wait(ids):
            os.write(1, b"reading\\n")  # Several threads write lines, none in two parts.
            time.sleep(float(sys.argv[2]))
            return ids * 3
        return {"x": tf.ensure_shape(tf.numpy_function(wait, [ids], tf.int64), [None])}
options = config.Data(cache="raw", cache_dir=sys.argv[1])
kept = cache.add_cache(options, Slow(), "train")
print("kept", int(kept.read(tf.constant([999], tf.int64))["x"][0]), flush=True)
"""


pytestmark = pytest.mark.usefixtures("own_signals")


class Source:
    """Numbers, images and, with `texts`, strings of several lengths; counts how many examples were read."""

    num_classes = 7

    def __init__(self, count, texts=False):
        self.count, self.texts, self.reads = count, texts, []

    def __len__(self):
        return self.count

    def read(self, ids):
        def note(ids):
            self.reads += ids.tolist()
            return ids

        ids = tf.ensure_shape(tf.numpy_function(note, [ids], tf.int64), ids.shape)
        pattern = tf.reshape(tf.range(4 * 3, dtype=tf.int64), [2, 2, 3])
        image = tf.cast(tf.reshape(ids, [-1, 1, 1, 1]) % 240 + pattern, tf.uint8)
        starts = tf.zeros_like(ids)
        text = tf.strings.substr(tf.fill([tf.shape(ids)[0]], "abcdefg"), starts, ids % 8)
        return {"image": image, "label": ids % 7} | ({"text": text} if self.texts else {})


def keep(source, directory=None):
    """A kept source, as a run has it."""
    return cache.add_cache(c.Data(cache="raw", cache_dir=directory and str(directory)), source, "train")


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_cache_holds_what_was_read_and_reads_once(where, tmp_path, monkeypatch):
    monkeypatch.setenv("FAST_DISK", str(tmp_path))
    directory = "$FAST_DISK/examples" if where == "disk" else None
    texts = where == "memory"
    source = Source(600, texts)
    kept = keep(source, directory)
    assert len(kept) == 600 and kept.num_classes == 7
    ids = np.random.default_rng(0).permutation(600)
    batches = tf.data.Dataset.from_tensor_slices(ids).batch(50, drop_remainder=True).repeat(2).map(kept.read)
    assert batches.element_spec["image"].shape == (50, 2, 2, 3) and batches.element_spec["label"].shape == (50,)
    found = list(batches.as_numpy_iterator())
    assert sorted(source.reads) == list(range(600))
    for name, expected in Source(600, texts).read(tf.constant(ids)).items():
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), np.concatenate([expected] * 2))
    if where == "disk":
        again = keep(second := Source(600), directory)
        np.testing.assert_array_equal(again.read(tf.constant([599, 0]))["label"], [599 % 7, 0])
        assert second.reads == [] and len(list((tmp_path / "examples").glob("*/*.npy"))) == 1


def test_strings_and_dtypes_unknown_to_numpy_files_stay_in_memory(tmp_path):
    class Thirds(Source):
        def read(self, ids):
            return {"x": tf.cast(ids, tf.bfloat16)[:, None] / 3}

    ids = tf.range(4, dtype=tf.int64)
    found = keep(Thirds(10)).read(ids)["x"]
    assert found.dtype == tf.bfloat16
    np.testing.assert_array_equal(found, Thirds(10).read(ids)["x"])
    with pytest.raises(ValueError, match=r"cache_dir .* Received: bfloat16 as 'x'"):
        keep(Thirds(10), tmp_path).read(ids)
    with pytest.raises(ValueError, match=r"cache_dir .* Received: strings as 'text'"):
        keep(Source(10, texts=True), tmp_path).read(ids)
    assert {path.suffix for path in tmp_path.glob("*/*")} == {".lock"}


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_examples_that_differ_in_shape_are_refused(where, tmp_path):
    class Padded(Source):
        """Pads to the longest example that is read at a time."""

        def read(self, ids):
            return {"tokens": tf.tile(ids[:, None], [1, 2 + tf.cast(tf.reduce_max(ids) // 400, tf.int32)])}

    directory = tmp_path / "ram" if where == "disk" else None
    with pytest.raises(ValueError, match=r"'tokens' differ: \[2\] .*\[3\] from example 256 on"):
        keep(Padded(500), directory).read(tf.constant([0], tf.int64))
    assert directory is None or [path.suffix for path in directory.glob("*/*")] == [".lock"]


def start(directory, seconds):
    """Starts a process that keeps slow examples, and waits until it has read some."""
    code = [sys.executable, "-c", SLOW, str(directory), str(seconds)]
    process = forked.Popen(code, cwd=REPOSITORY, env=worker_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "reading\n"
    until(lambda: list(directory.glob("*/*.writing")), 60)
    return process


@pytest.mark.parametrize("length", [0, 20, -8])
def test_damaged_files_are_written_again(tmp_path, length):
    path = keep(Source(20), tmp_path).fill()
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    again = keep(source := Source(20), tmp_path)
    np.testing.assert_array_equal(again.read(tf.constant([9, 0]))["label"], [9 % 7, 0])
    assert len(source.reads) == 20 and path.read_bytes() == whole


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_users_of_one_directory_have_files_of_their_own():
    """The files of another user were believed by their name, and a second user was refused."""
    with tempfile.TemporaryDirectory() as name:  # Others cannot enter `tmp_path`.
        shared = pathlib.Path(name)
        shared.chmod(0o1777)
        mine = keep(Source(20), shared).fill().parent
        assert mine.stat().st_mode & 0o777 == 0o700
        os.seteuid(65534)
        try:
            other = keep(source := Source(20), shared)
            np.testing.assert_array_equal(other.read(tf.constant([9]))["label"], [9 % 7])
        finally:
            os.seteuid(0)
        assert len(source.reads) == 20 and len(list(shared.iterdir())) == len(list(shared.glob("*/*.npy"))) == 2
        # Another user has made what has the name of mine, a link: its examples could be any.
        mine.symlink_to(mine.rename(shared / "elsewhere"))
        os.chown(mine, 65534, 65534, follow_symlinks=False)
        with pytest.raises(OSError, match=r"cache_dir=.* another user.*: remove it"):
            keep(Source(20), shared).read(tf.constant([9]))


@pytest.mark.workers
def test_a_writer_that_is_killed_leaves_nothing_half_and_two_write_once(tmp_path, capsys):
    with start(tmp_path, 30) as killed:
        killed.kill()
    assert len(list(tmp_path.glob("*/*.writing"))) == 1
    mine = Source(1000)
    kept = keep(mine, tmp_path)
    with start(tmp_path, 0.5) as other:
        kept.name = next(path.stem for path in tmp_path.glob("*/*.lock"))
        kept.fill()  # Waits for the other, and finds what it has written.
        assert mine.reads == []
        assert capsys.readouterr().err.count("tfdist: waiting for another process that stores the examples (") == 1
        assert other.communicate(timeout=300)[0].splitlines()[-1] == "kept 2997"
    assert sorted(path.suffix for path in tmp_path.glob("*/*")) == [".lock", ".npy"]


def test_the_modification_hash_of_a_source_decides_what_is_reused(tmp_path):
    for name in ("fingerprint", "modified"):
        for said in ("monday", "tuesday", "monday"):
            source = Source(10)
            setattr(source, name, lambda said=said: said)
            keep(source, tmp_path / name).fill()
        assert len(list((tmp_path / name).glob("*/*.npy"))) == 2


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"data.cache_dir=.*file/x'"):
        keep(Source(3), tmp_path / "file" / "x").fill()
