"""Data that changed between two starts is noticed when the run resumes."""

import os
import pathlib

import keras
import numpy as np
import pytest
import small_runs
from PIL import Image

import tfdist
from tfdist import config as c
from tfdist.training import loop

pytestmark = pytest.mark.usefixtures("own_signals", "own_process")


@pytest.fixture
def root(tmp_path):
    """40 images of noise, PATH/SPLIT/CLASS/NUMBER.bmp, all of one size in bytes."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 4)):
        for label in ("cat", "dog"):
            (tmp_path / "images" / split / label).mkdir(parents=True)
            for number in range(count):
                write(tmp_path / "images" / split / label / f"{number}.bmp", rng)
    return tmp_path / "images"


def write(path: pathlib.Path, rng: np.random.Generator) -> None:
    Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(path)


def train(root: pathlib.Path, epochs: int, **options) -> None:
    run = small_runs.start(
        root.parent / "run",
        model={"target": "lab:linear", "num_classes": 2, "input_shape": (8, 8, 3)},
        data=c.Data(source={"target": "tfdist.zoo.sources:image_folder", "path": str(root)}, batch_size=8),
        train=c.Train(epochs=epochs),
    )
    assert loop.train(run, **options) == 0


def resume(root: pathlib.Path, epochs: int, **options) -> None:
    (root.parent / "run" / "finished.json").unlink()
    train(root, epochs, **options)


@pytest.mark.slow
def test_one_image_fewer_is_refused(root):
    """The run resumed without a word."""
    train(root, 1)
    (root / "train" / "dog" / "3.bmp").unlink()
    words = r"has changed since the run was saved: .*the number of examples of the train split, .* --allow_data_changes"
    with pytest.raises(ValueError, match=words):
        resume(root, 1)
    train(root, 2, allow_config_changes=True, allow_data_changes=True)


@pytest.mark.slow
def test_changed_times_are_reported(root, capsys):
    train(root, 1)
    os.utime(root / "train" / "cat" / "5.bmp", (1, 1))
    capsys.readouterr()
    resume(root, 1)
    warning = "WARNING: the data has changed since the run was saved: sizes or times of the files of the train split."
    assert warning in "".join(capsys.readouterr())
    resume(root, 2, allow_config_changes=True)
    capsys.readouterr()
    resume(root, 2)
    assert "the data has changed" not in "".join(capsys.readouterr())


def test_changed_contents_are_refused(root):
    train(root, 1)
    for path in root.glob("*/*/*.bmp"):
        write(path, np.random.default_rng(1))
    words = r"has changed since the run was saved: 'image' of the train split, 'image' of .* --allow_data_changes"
    with pytest.raises(ValueError, match=words):
        resume(root, 1)
    with pytest.raises(ValueError, match=words):  # As `tfdist train WORKDIR --epochs=2`.
        train(root, 2, allow_config_changes=True)


@pytest.mark.slow
def test_a_script_that_resumes_with_other_arrays_warns(tmp_path, capsys):
    cluster = tfdist.connect()

    def fit(examples: int, epochs: int) -> None:
        keras.utils.clear_session()
        x = np.arange(3 * examples, dtype=np.float32).reshape(-1, 3) / 100
        with cluster.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        tfdist.fit(cluster, model, x, x[:, :1], batch_size=8, epochs=epochs, verbose=0, workdir=tmp_path)

    fit(32, 1)
    fit(32, 2)
    assert "the data has changed" not in "".join(capsys.readouterr())
    fit(40, 3)
    assert "the data has changed since the run was saved: the number of examples" in "".join(capsys.readouterr())
