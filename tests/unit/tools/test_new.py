"""`tfdist new` and `tfdist docs`: what they write and print. test_wheel.py trains with what is written."""

import argparse
import importlib
import pathlib
import re
import subprocess
import sys

import forked
import numpy as np
import pytest
from launching import REPOSITORY, tfdist
from PIL import Image

from tfdist.config import load, specs, validate
from tfdist.tools.start import docs_pages, new


def write(name, kind, data, **options):
    given = {"images": None, "table": None, "pretrained": "", "label": "", "ignore": []}
    return new.write(argparse.Namespace(name=pathlib.Path(name), **given | {kind: data} | options))


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Runs `tfdist new`; returns the output, and the config with its model and both sources."""
    monkeypatch.chdir(tmp_path)

    def run(name, kind, data, **options):
        said = write(name, kind, data, **options)
        config = load.load(f"{name}/{name}.py")
        validate.validate(config)
        monkeypatch.syspath_prepend(tmp_path / name)
        importlib.invalidate_caches()
        model = specs.build(config.model, field="config.model")
        splits = config.data.train_split, config.data.evaluation_split
        found = [specs.build(config.data.source, split, field="x") for split in splits]
        done = subprocess.run([sys.executable, "-m", "ruff", "check", "--line-length=120", "--isolated", name])
        assert done.returncode == 0
        return said, config, model, found

    return run


def pictures(folder, splits=("",)):
    """Writes 30 coloured images of 2 classes and two sizes in each split."""
    generator = np.random.default_rng(0)
    for split in splits:
        for label, count in (("cat", 20), ("dog", 10)):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 255, (300, 200, 3) if number % 2 else (150, 100, 3), np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f"{number}.png")


def test_images_with_and_without_splits(make, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # Without a Slurm.
    pictures(tmp_path / "pets")
    said, config, model, (train, test) = make("pets1", "images", "pets")
    assert "2 classes: cat, dog" in said and "24 examples for training, 6 for evaluation" in said
    assert "cd pets1 && tfdist train pets1.py" in said
    assert model.input_shape == (None, 96, 96, 3) and model.output_shape == (None, 2)
    assert (len(train), len(test)) == (24, 6) and config.data.batch_size == 1
    assert not (tmp_path / "pets1" / "job.sbatch").exists()
    readme = (tmp_path / "pets1" / "README.md").read_text()
    assert "tfdist train pets1.py" in readme and len(readme.splitlines()) <= 14
    with pytest.raises(ValueError, match=r"has no split 'train'. It has: none. The expected layout is PATH/SPLIT"):
        make("flat", "images", "pets/dog")
    with pytest.raises(ValueError, match="MobileNetV3"):
        make("other", "images", "pets", pretrained="MobileNetV9")
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    pictures(tmp_path / "divided", ("train", "val"))
    _, config, _, (train, test) = make("pets2", "images", "divided")
    assert (len(train), len(test), config.data.evaluation_split) == (30, 30, "val")
    job = (tmp_path / "pets2" / "job.sbatch").read_text()
    assert "-m tfdist.main --config=pets2.py --config.cluster.requeue=true" in job


def test_a_table_of_classes_and_one_of_numbers(make, tmp_path, monkeypatch):
    rows = "\n".join(f"{n},{n % 7},{'ab'[n % 2]},name{n},{'xyz'[n % 3]},{n * 1000.5}" for n in range(200))
    (tmp_path / "t.csv").write_text(f"id,size,colour,name,kind,price\n{rows}\n")
    with pytest.raises(ValueError, match=r"the column 'name' has 200 different texts, .* ignore=\['name'\]"):
        make("wrong", "table", "t.csv")
    said, config, model, _ = make("kinds", "table", "t.csv", label="kind", ignore=["name", "id"])
    assert "a class, of 3: x, y, z" in said and "from the columns: size, colour (2 values), price" in said
    assert config.data.source["ignore"] == ["name", "id"] and config.adapt == {"target": "kinds_model:adapt"}
    assert model.input_shape == (None, 4) and model.output_shape == (None, 3)
    monkeypatch.syspath_prepend("")  # As with `python -m`: the directory is found as a package.
    with pytest.raises(ValueError, match="kinds exists and is not empty"):
        make("kinds", "table", "t.csv")
    said, config, model, _ = make("prices", "table", "t.csv", ignore=["name"])
    assert "'price' is predicted: a number, 0 to" in said and config.checkpoint.best_metric == "mae"
    assert config.objective["target"].endswith(":regression") and model.output_shape == (None, 1)


@pytest.mark.slow
def test_transfer_learning_trains_the_last_layer_and_then_all(tmp_path):
    """A student's first wish had no template; the number of trained parameters shows that the freezing worked."""
    pictures(tmp_path / "pets")
    quick = ["--config.model.weights=", "--config.train.steps=2", "--config.train.epochs=none"]
    quick.append("--config.data.source.size=[32,32]")

    def train(*words):
        return tfdist("train", "mine.py", *quick, *words, cwd=tmp_path / "mine", start=forked.run).stdout

    tfdist("new", "mine", "--images=pets", "--pretrained=MobileNetV2", cwd=tmp_path, start=forked.run)
    module = tmp_path / "mine" / "mine_model.py"
    module.write_text(module.read_text().replace("(160, 160, 3)", "(32, 32, 3)"))  # Quicker.
    assert "2,260,546 parameters (2,562 trained), float32" in train()
    fine = ["--workdir=runs/fine", "--config.model.trainable=true", "--config.model.start=runs/mine/model.keras"]
    assert "2,260,546 parameters, float32" in train(*fine, "--config.optimizer.learning_rate=1e-5")


def test_names_and_folders_that_cannot_be_used_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    for name, words in (
        ("mine", "mine exists"),
        ("2nd", "'2nd' .* run_2nd"),
        ("json", "'json' .* run_json"),  # A module of Python would be imported in its place.
        ("other", "no folder '.*none'"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            write(name, "images", "none")


def test_pages_are_listed_and_printed(capsys):
    docs_pages.main(argparse.Namespace(page=""))
    listed = capsys.readouterr().out
    assert "  guide " in listed and re.search(r"^  your-data +Your data$", listed, re.MULTILINE)
    for word in ("your-data", "docs/your-data.md", "launch/slurm.sbatch", "docs/courses/line_exercise.py"):
        docs_pages.main(argparse.Namespace(page=word))
        file = "docs/your-data.md" if word == "your-data" else word
        assert capsys.readouterr().out == (REPOSITORY / file).read_text()
    for word in ("quokka", "launch/../pyproject.toml"):
        with pytest.raises(ValueError, match=f"there is no page '{word}'"):
            docs_pages.main(argparse.Namespace(page=word))
