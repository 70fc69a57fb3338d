"""`tfdist prepare --size`: the images that are stored, what a killed or wrong command leaves, and the stream."""

import ast
import errno
import fcntl
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import forked
import numpy as np
import pytest
import tensorflow as tf
from launching import ATOL, REPOSITORY, assert_weights_agree, run_all, weights, worker_environment
from parameters import slow_except

from tfdist import config as c
from tfdist.data import stream
from tfdist.tools.prepare_data import command, resized_files
from tfdist.zoo import inception, sources

# A linear network on the photos, cropped to 16x16.
CONFIG = """
import keras
from tfdist import config as c

def network(num_classes):
    inputs = keras.Input((16, 16, 3), name="image")
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.Flatten()(inputs)))

def get_config():
    source = {{"target": "tfdist.zoo.sources:image_folder", "path": {path!r}}}
    prepare = {{"target": "tfdist.zoo.inception:image", "size": 16}}
    return c.Config(
        model={{"target": "photos_config:network", "num_classes": 2}},
        data=c.Data(source=source, prepare=prepare, batch_size=8),
        train=c.Train(steps=12),
    )
"""
# Writes the images of the folder in sys.argv[1] to sys.argv[2]; takes a second for each of its chunks.
SLOW = """
import os, pathlib, sys, time
import tensorflow as tf
from tfdist.tools.prepare_data import resized_files
from tfdist.zoo import sources
resized_files._CHUNK = 4
class Slow:
    def __init__(self, source): self.source = source
    def __len__(self): return len(self.source)
    def fingerprint(self): return self.source.fingerprint()
    def read(self, ids):
        def wait(ids):
            os.write(1, b"reading\\n")  # Several threads write lines, none in two parts.
            time.sleep(1.0)
            return ids
        return self.source.read(tf.ensure_shape(tf.numpy_function(wait, [ids], tf.int64), ids.shape))
source = Slow(sources.image_folder("train", path=sys.argv[1], encoded=True))
resized_files.write_split(source, {}, "train", (20, 24), 3, pathlib.Path(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """24 training and 6 test images of 2 classes and different sizes: smooth, as photos are."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(30):
        height, width = 40 + 7 * (number % 5), 36 + 5 * (number % 7)
        rows, columns = np.mgrid[0:height, 0:width]
        waves = [127 + 100 * np.sin(rows / (5 + number % 3) + columns / (9 + phase)) for phase in range(3)]
        folder = root / ("test" if number % 5 == 4 else "train") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        content = tf.io.encode_jpeg(np.stack(waves, axis=-1).astype(np.uint8), quality=95)
        (folder / f"{number:02d}.jpg").write_bytes(content.numpy())
    return root


def configuration(photos):
    source = {"target": "tfdist.zoo.sources:image_folder", "path": str(photos), "size": [64, 64]}
    data = c.Data(source=source, train_split="train[:75%]", evaluation_split="test", batch_size=4)
    return c.Config(model={"target": "x:y"}, data=data, train=c.Train(epochs=1))


def write(photos, output, size):
    return command.write_files(configuration(photos), size, pathlib.Path(output))


def read_all(source):
    return {name: value.numpy() for name, value in source.read(tf.range(len(source), dtype=tf.int64)).items()}


def test_images_of_one_size_are_those_of_the_folder_at_this_size(photos, tmp_path):
    rows = write(photos, tmp_path / "files", (20, 24))
    assert [row[:2] for row in rows] == [("train", 24), ("test", 6)]
    for split in ("train", "train[:75%]", "train[75%:]", "test"):
        found = read_all(sources.prepared(split, path=str(tmp_path / "files"), decode=3))
        wanted = read_all(sources.image_folder(split, path=str(photos), size=(20, 24)))
        assert set(found) == {"image", "label"}
        np.testing.assert_array_equal(found["label"], wanted["label"])
        assert found["image"].shape == wanted["image"].shape
        assert np.abs(found["image"].astype(int) - wanted["image"]).mean() < 4  # Of 255 levels: JPEG of quality 90.
    source = sources.prepared("train", path=str(tmp_path / "files"))
    assert (source.classes, source.num_classes) == (["a", "b"], 2)
    assert source.fingerprint() != sources.prepared("train[:50%]", path=str(tmp_path / "files")).fingerprint()
    source.verify()


@pytest.mark.parametrize("size", slow_except([(20, 24), 45], [(20, 24)]))
def test_grey_images_stay_grey_and_are_read_in_colour(size, photos, tmp_path):
    config = configuration(photos)
    config.data.source["channels"] = 1
    command.write_files(config, size, tmp_path)
    batch = sources.prepared("test", path=str(tmp_path)).read(tf.range(6, dtype=tf.int64))
    assert set(tf.map_fn(tf.io.extract_jpeg_shape, batch["image"], tf.int32)[:, 2].numpy()) == {1}
    cropped = inception.image(batch, tf.zeros([6, 2], tf.int64), training=True, size=8, mean=(0,) * 3, std=(1,) * 3)
    assert cropped["image"].shape == (6, 8, 8, 3)
    np.testing.assert_array_equal(cropped["image"][..., 0], cropped["image"][..., 2])


@pytest.mark.slow
def test_one_number_is_the_shorter_side_and_enlarges_nothing(photos, tmp_path):
    write(photos, tmp_path, 45)
    originals = read_all(sources.image_folder("train", path=str(photos), encoded=True))
    stored = read_all(sources.prepared("train", path=str(tmp_path)))
    kept = 0
    for original, found in zip(originals["image"], stored["image"], strict=True):
        pixels, again = (tf.io.decode_jpeg(each, channels=3).numpy() for each in (original, found))
        shorter = min(pixels.shape[:2])
        if shorter <= 45:
            kept += 1
            assert found == original
            continue
        expected = tuple(round(length * 45 / shorter) for length in pixels.shape[:2])
        assert again.shape == (*expected, 3)
        # The loss of JPEG at quality 90 with halved colour: 4 of 255 levels in the mean, at most.
        assert np.abs(again.astype(float) - tf.image.resize(pixels, expected, antialias=True)).mean() < 4
    assert 5 <= kept <= len(originals["image"]) - 5
    np.testing.assert_array_equal(stored["label"], originals["label"])


@pytest.mark.slow
def test_jpegs_of_one_size_can_be_decoded_to_pixels(photos, tmp_path):
    write(photos, tmp_path, (20, 24))
    content = read_all(sources.prepared("test", path=str(tmp_path)))["image"]
    pixels = read_all(sources.prepared("test", path=str(tmp_path), decode=3))["image"]
    np.testing.assert_array_equal(pixels, np.stack([tf.io.decode_jpeg(one, channels=3) for one in content]))
    write(photos, tmp_path / "sides", 20)
    with pytest.raises(ValueError, match=r"decode is 0, or 1 or 3 channels for JPEGs of one size.*3 for jpeg of size"):
        sources.prepared("test", path=str(tmp_path / "sides"), decode=3)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 32), 32])
def test_two_workers_take_the_batches_of_one_and_a_resume_goes_on(size, photos, tmp_path):
    write(photos, tmp_path, size)
    source = sources.prepared("train", path=str(tmp_path))

    def prepare(batch, seeds, *, training):
        return inception.image(batch, seeds, training=training, size=16)

    def batches(first, replicas, start, stop):
        shard = stream.ReplicaShard(first_replica=first, local_replicas=1, num_replicas=replicas)
        dataset = stream.training(source, prepare, shard, global_batch=8, seed=3, shuffle=True)(start, stop)
        return [{name: value.numpy() for name, value in batch.items()} for batch in dataset.take(stop - start)]

    one = batches(0, 1, 0, 5)
    assert one[0]["image"].shape == (8, 16, 16, 3) and one[0]["image"].dtype == np.float32
    assert set(one[0]) == {"image", "label"}
    for whole, *halves in zip(one, batches(0, 2, 0, 5), batches(1, 2, 0, 5), strict=True):
        for name, values in whole.items():
            np.testing.assert_array_equal(values, np.concatenate([half[name] for half in halves]))
    for before, after in zip(one[3:], batches(0, 1, 3, 5), strict=True):
        np.testing.assert_array_equal(before["image"], after["image"])
    assert any((one[0]["image"][k] != one[3]["image"][m]).any() for k in range(8) for m in range(8))


@pytest.mark.slow
@pytest.mark.workers
def test_a_run_on_the_files_is_the_same_on_two_workers_and_after_a_resume(photos, tmp_path):
    (tmp_path / "photos_config.py").write_text(CONFIG.format(path=str(photos)))
    environment = worker_environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY}")
    config = f"--config={tmp_path / 'photos_config.py'}"
    output = tmp_path / "files"
    flags = ["--size=32", f"--output={output}"]
    (said,) = run_all([[sys.executable, "-m", "tfdist", "prepare", config, *flags]], [environment])
    (spec,) = shlex.split(next(line for line in said.splitlines() if "--config.data.source=" in line))
    assert "MB" in said

    def train(launcher, name, *more):
        command_line = [sys.executable, "-m", *launcher, config, f"--workdir={tmp_path / name}", spec, *more]
        run_all([command_line], [environment])
        return weights(tmp_path / name)

    one = train(["tfdist.main"], "one")
    assert_weights_agree(one, train(["tfdist.launch", "--workers=2", "--"], "two"), atol=ATOL)
    train(["tfdist.main"], "resumed", "--config.train.steps=6")
    (tmp_path / "resumed" / "finished.json").unlink()
    assert_weights_agree(
        one, train(["tfdist.main"], "resumed", "--allow_config_changes", "--allow_data_changes"), atol=0
    )


@pytest.mark.workers
def test_a_killed_command_leaves_no_readable_files_and_the_next_one_writes_all(photos, tmp_path):
    with forked.Popen(
        [sys.executable, "-c", SLOW, str(photos), str(tmp_path)],
        env=worker_environment(),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as killed:
        for _ in range(4):  # The first chunks are written by then.
            assert killed.stdout.readline() == "reading\n"
        killed.kill()
    assert len(list(tmp_path.glob("train.writing"))) == 1 and not (tmp_path / "train").exists()
    with pytest.raises(FileNotFoundError, match="there is no prepared split in"):
        sources.prepared("train", path=str(tmp_path))
    write(photos, tmp_path, (20, 24))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".test.lock", ".train.lock", "test", "train"]
    assert len(sources.prepared("train", path=str(tmp_path))) == 24


def test_what_is_complete_is_kept_and_other_files_are_refused(photos, tmp_path):
    write(photos, tmp_path, (20, 24))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    rows = write(photos, tmp_path, (20, 24))
    assert [row[-1] for row in rows] == ["present", "present"]
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    with pytest.raises(ValueError, match=r"'train' is there, made from other data, with other .*: size=\[20, 24\]"):
        write(photos, tmp_path, (20, 20))
    (tmp_path / "mine" / "train").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"'train' is there, .*not by this command: no complete examples. Remove"):
        write(photos, tmp_path / "mine", 20)
    # Another program's manifest, beside images: nothing may be removed.
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "train" / "manifest.json").write_text('{"made": "by another program"}')
    before = sorted((tmp_path / "photos").rglob("*"))
    with pytest.raises(ValueError, match=r"'train' is there, .* not by this command: no complete examples"):
        write(photos, tmp_path / "photos", 20)
    assert [path for path in sorted((tmp_path / "photos").rglob("*")) if path.suffix != ".lock"] == before
    # Cut off, it is no longer complete.
    image = next((tmp_path / "train").glob("image*"))
    os.truncate(image, image.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"prepared .* has no split 'train'\. It has: test\."):
        sources.prepared("train", path=str(tmp_path))
    with pytest.raises(ValueError, match=r"no complete examples. Remove \S+/train, or give another folder"):
        write(photos, tmp_path, (20, 24))


def test_the_printed_source_is_one_word_for_a_shell(tmp_path):
    output = tmp_path / "it's $HOME"
    text = command._advice(output)
    (word,) = shlex.split(next(line for line in text.splitlines() if "--config.data.source=" in line))
    source = {"target": "tfdist.zoo.sources:prepared", "path": str(output)}
    assert ast.literal_eval(word.removeprefix("--config.data.source=")) == source


def test_images_that_have_changed_since_are_refused(photos, tmp_path):
    mine = shutil.copytree(photos, tmp_path / "mine")
    write(mine, tmp_path / "files", (20, 24))
    path = next((mine / "train").glob("*/*.jpg"))
    path.write_bytes(tf.io.encode_jpeg(np.zeros((40, 36, 3), np.uint8)).numpy())
    with pytest.raises(ValueError, match=r"the sizes or times of its files have changed\. Remove .*/files/train"):
        write(mine, tmp_path / "files", (20, 24))


def test_a_file_system_without_locks_is_refused(photos, tmp_path, monkeypatch):
    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"--output=\S+ cannot be written: No locks available\. .* give another folder"):
        write(photos, tmp_path, (20, 24))


class Bright:
    """A source whose `read` has a Python `if`, which AutoGraph converts."""

    def __len__(self):
        return 6

    def read(self, ids):
        image = tf.fill([6, 20, 24, 3], 7)
        if tf.reduce_max(image) > 5:
            image += 1
        return {"image": tf.ensure_shape(tf.cast(image, tf.uint8)[: tf.shape(ids)[0]], [None, 20, 24, 3])}


def test_the_code_of_a_source_is_converted_as_in_training(tmp_path):
    resized_files.write_split(Bright(), {}, "train", (20, 24), 3, tmp_path)
    assert (read_all(sources.prepared("train", path=str(tmp_path), decode=3))["image"] == 8).all()


def test_a_full_disk_a_damaged_image_and_data_that_are_no_images_say_one_thing(photos, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True).returncode == 0:
        try:
            with pytest.raises(
                OSError, match=r"--output=\S+ cannot be written: No space left on device. Free space, or"
            ):
                write(photos, disk, (64, 64))
            assert [path.name for path in disk.iterdir()] == [".train.lock"]
        finally:
            subprocess.run(["umount", "-l", disk], check=True)
    bad = tmp_path / "bad"
    for split in ("train", "test"):
        for label in "ab":
            (bad / split / label).mkdir(parents=True)
            (bad / split / label / "0.jpg").write_bytes((photos / "train" / "a" / "00.jpg").read_bytes())
    content = (photos / "train" / "a" / "00.jpg").read_bytes()
    (bad / "train" / "b" / "1.jpg").write_bytes(content)
    (bad / "train" / "a" / "0.jpg").write_bytes(content[: 3 * len(content) // 4])
    with pytest.raises(ValueError, match=r"The image '\S+/train/a/0.jpg' cannot be read: .* Repair or remove it"):
        write(bad, tmp_path / "out", 20)
    assert not (tmp_path / "out" / "train").exists()
    with pytest.raises(ValueError, match='--size needs a source of images: "image", encoded, string'):
        resized_files.write_split(sources.line("train"), {}, "train", 8, 3, tmp_path / "line")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--size=3"], "give both --size=256 and --output=FOLDER"),
        (["--to=raw", "--size=3"], "--to was removed: images are written as JPEGs"),
        (["--size=9x0", "--output=x"], "--size: give HEIGHTxWIDTH in pixels, such as 256x256, or one"),
    ],
)
def test_flags_that_do_not_fit_together_are_one_message(flags, message):

    command_line = [sys.executable, "-m", "tfdist", "prepare", "--config=configs/digits.py", *flags]
    ended = subprocess.run(command_line, cwd=REPOSITORY, env=worker_environment(), capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith(f"tfdist prepare: {message}")
    assert ended.stderr.count("\n") == 1
