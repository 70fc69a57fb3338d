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

import numpy as np
import pytest
import tensorflow as tf
from launching import ATOL, REPOSITORY, assert_weights_agree, run_all, weights, worker_environment

from tfdist import config as c
from tfdist.tools.prepare_data import command, resized_files
from tfdist.zoo import sources

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


def test_size_is_the_shorter_side_and_nothing_is_enlarged(photos, tmp_path):
    rows = write(photos, tmp_path, 45)
    assert [row[:2] for row in rows] == [("train", 24), ("test", 6)]
    kept = 0
    for split in ("train[:75%]", "train[75%:]", "test"):
        originals = read_all(sources.image_folder(split, path=str(photos), encoded=True))
        source = sources.prepared(split, path=str(tmp_path))
        stored = read_all(source)
        assert set(stored) == {"image", "label"} and (source.classes, source.num_classes) == (["a", "b"], 2)
        source.verify()
        np.testing.assert_array_equal(stored["label"], originals["label"])
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
    assert 5 <= kept <= 25


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


def test_what_a_killed_command_left_is_written_again(photos, tmp_path):
    (tmp_path / "train.writing").mkdir()
    (tmp_path / "train.writing" / "image-0.npy").write_bytes(b"half")
    with pytest.raises(FileNotFoundError, match="there is no prepared split in"):
        sources.prepared("train", path=str(tmp_path))
    write(photos, tmp_path, 40)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".test.lock", ".train.lock", "test", "train"]
    assert len(sources.prepared("train", path=str(tmp_path))) == 24


def test_what_is_complete_is_kept_and_other_files_are_refused(photos, tmp_path):
    def refused(words, output, size=40, images=photos):
        with pytest.raises(ValueError, match=words):
            write(images, output, size)

    mine, files = shutil.copytree(photos, tmp_path / "mine"), tmp_path / "files"
    write(mine, files, 40)
    times = {path: path.stat().st_mtime_ns for path in files.rglob("*.npy")}
    rows = write(mine, files, 40)
    assert [row[-1] for row in rows] == ["present", "present"]
    assert times == {path: path.stat().st_mtime_ns for path in files.rglob("*.npy")}
    refused("'train' .*: size=40", files, 20, mine)
    path = next((mine / "train").glob("*/*.jpg"))
    path.write_bytes(tf.io.encode_jpeg(np.zeros((40, 36, 3), np.uint8)).numpy())
    refused("sizes or times .* Remove .*/files/train", files, images=mine)
    # Another program's manifest, beside images: nothing may be removed.
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "train" / "manifest.json").write_text('{"made": "by another program"}')
    before = sorted((tmp_path / "photos").rglob("*"))
    refused("'train' .*not by this command", tmp_path / "photos", 20)
    assert [path for path in sorted((tmp_path / "photos").rglob("*")) if path.suffix != ".lock"] == before
    # Cut off, it is no longer complete.
    image = next((files / "train").glob("image*"))
    os.truncate(image, image.stat().st_size - 1)
    with pytest.raises(ValueError, match=r"'train'\. It has: test\."):
        sources.prepared("train", path=str(files))
    refused(r"no complete examples. Remove \S+/train", files, images=mine)


def test_the_printed_source_is_one_word_for_a_shell(tmp_path):
    output = tmp_path / "it's $HOME"
    text = command._advice(output)
    (word,) = shlex.split(next(line for line in text.splitlines() if "--config.data.source=" in line))
    source = {"target": "tfdist.zoo.sources:prepared", "path": str(output)}
    assert ast.literal_eval(word.removeprefix("--config.data.source=")) == source


def test_a_full_disk_and_one_without_locks_say_what_to_do(photos, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", disk], capture_output=True).returncode == 0:
        try:
            with pytest.raises(OSError, match=r"--output=\S+ .*No space left on device"):
                write(photos, disk, 64)
            assert [path.name for path in disk.iterdir()] == [".train.lock"]
        finally:
            subprocess.run(["umount", "-l", disk], check=True)

    def no_locks(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"--output=\S+ .*No locks available"):
        write(photos, tmp_path, 40)


def test_a_damaged_image_and_data_that_are_no_images_are_named(photos, tmp_path):
    bad = shutil.copytree(photos, tmp_path / "bad")
    path = next((bad / "train" / "a").glob("*.jpg"))
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(ValueError, match=rf"/train/a/{path.name}' cannot be read"):
        write(bad, tmp_path / "out", 20)
    assert not (tmp_path / "out" / "train").exists()
    with pytest.raises(ValueError, match=r'--size .* "image" string'):
        resized_files.write_split(sources.line("train"), {}, "train", 8, tmp_path / "line")
