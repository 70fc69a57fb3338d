"""`tfdist new` and `tfdist docs`: what they write and print. test_wheel.py trains with what is written."""

import importlib
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest
from launching import REPOSITORY
from PIL import Image

from tfdist.config import load, specs, validate
from tfdist.tools.start import new, pages, templates


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Runs `tfdist new`; returns the output, and the config with its model and both sources."""
    monkeypatch.chdir(tmp_path)

    def run(name, kind, data, label="", splits=("train", "test")):
        said = new.write(pathlib.Path(name), kind, data, label)
        config = load.load(f"{name}/{name}.py")
        validate.validate(config)
        monkeypatch.syspath_prepend(tmp_path / name)
        importlib.invalidate_caches()
        model = specs.build(config.model, field="config.model")
        splits = splits or (config.data.train_split, config.data.evaluation_split)
        found = [specs.build(config.data.source, split, field="x") for split in splits]
        done = subprocess.run([sys.executable, "-m", "ruff", "check", "--line-length=120", "--isolated", name])
        assert done.returncode == 0
        return said, config, model, found

    return run


def test_images_without_splits(make, tmp_path):
    generator = np.random.default_rng(0)
    for label, count in (("cat", 20), ("dog", 10)):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for number in range(count):
            size = (300, 200) if number else (150, 100)
            Image.fromarray(generator.integers(0, 255, (*size, 3), np.uint8)).save(
                tmp_path / "pets" / label / f"{number}.png"
            )
    said, config, model, (train, test) = make("pets1", "images", "pets")
    assert "2 classes: cat, dog" in said and "scaled from up to 300x200" in said
    assert "24 examples for training, 6 for evaluation" in said and "cd pets1 && tfdist train pets1.py" in said
    assert model.input_shape == (None, 128, 88, 3) and model.output_shape == (None, 2)
    # Its masks would depend on the number of replicas.
    assert not any(isinstance(layer, keras.layers.Dropout) for layer in model.layers)
    assert (
        (len(train), len(test)) == (24, 6) and config.data.batch_size == 2 and config.data.source["size"] == [128, 88]
    )
    readme = (tmp_path / "pets1" / "README.md").read_text()
    assert "tfdist train pets1.py" in readme and len(readme.splitlines()) <= 14
    with pytest.raises(
        ValueError, match=r"has no split 'train'. It has: none. The expected layout is PATH/SPLIT/CLASS"
    ):
        make("flat", "images", "pets/dog")
    for number in range(6):
        (tmp_path / "grey" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 40 * number).save(tmp_path / "grey" / str(number % 2) / f"{number}.bmp")
    assert make("greys", "images", "grey")[2].input_shape == (None, 16, 16, 3)
    # What is hidden is not looked at, links to folders are followed, and what is not read is told.
    (tmp_path / "pets" / "cat" / "._0.png").write_bytes(b"\0\5\x16\7")
    (tmp_path / "pets" / "cat" / "0.webp").write_bytes(b"RIFF")
    (tmp_path / "pets" / "dog" / "loop").symlink_to(".")
    (tmp_path / "linked" / "fox" / "red").mkdir(parents=True)
    for label in ("cat", "dog"):
        (tmp_path / "linked" / label).symlink_to(tmp_path / "pets" / label)
    said = make("pets2", "images", "linked")[0]
    assert "2 classes: cat, dog" in said and "not read: 1 with .webp" in said
    assert "left out, as folders without images of their own: fox" in said


def test_tables_of_classes_and_numbers(make, tmp_path):
    rows = "\n".join(f"{n},{n % 7},{'ab'[n % 2]},name{n},{'xyz'[n % 3]},{n * 1000.5}" for n in range(200))
    (tmp_path / "t.csv").write_text(f"id,size,colour,name,kind,price\n{rows}\n")
    said, config, model, _ = make("kinds", "table", "t.csv", "kind")
    assert "left out, as names or numbers of rows: name, id" in said and "'kind' has 3 classes: x, y, z" in said
    assert config.data.source["ignore"] == ["name", "id"] and config.adapt == {"target": "kinds_model:adapt"}
    assert model.input_shape == (None, 4) and model.output_shape == (None, 3)
    said, config, model, _ = make("prices", "table", "t.csv")
    assert "the column 'price' is a number, " in said and config.checkpoint.best_metric == "mae"
    assert config.objective["target"].endswith(":regression") and model.output_shape == (None, 1)


def test_arrays_and_text(make, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((100, 6, 2), np.float32), y=np.arange(100) % 5)
    _, config, model, _ = make("grids", "arrays", "a.npz")
    assert (
        config.objective["inputs"] == "image" if "inputs" in config.objective else model.input_shape == (None, 6, 2, 1)
    )
    for targets in (np.linspace(0, 9, 100), np.ones((100, 3))):
        np.savez(tmp_path / "n.npz", x=np.zeros((100, 8, 8, 1), np.float32), y=targets)
        _, config, model, _ = make(f"numbers{targets.ndim}", "arrays", "n.npz")
        assert model.input_shape == (None, 8, 8, 1) and model.output_shape == (None, 3 if targets.ndim > 1 else 1)
        assert config.objective["target"].endswith(":regression")
    # Names of Keras and of scikit-learn, of arrays that are no images, and other names of splits.
    x, y, targets = np.zeros((60, 5)), np.arange(60) % 3, np.linspace(0, 1, 60)
    for name, arrays, outputs, split in (
        ("keras1", {"x_train": x, "y_train": y, "x_val": x, "y_val": y}, 3, "val"),
        ("keras2", {"x_train": x, "targets_train": targets}, 1, "train[80%:]"),
        ("sklearn", {"X_train": x, "y_train": y}, 3, "train[80%:]"),
    ):
        np.savez(tmp_path / "k.npz", **arrays)
        _, config, model, _ = make(name, "arrays", "k.npz", splits=None)
        assert config.data.evaluation_split == split
        assert model.input_shape == (None, 5) and model.output_shape == (None, outputs)
    inputs = np.zeros((20, 3, 8, 8))
    for x, y, words in (
        (inputs, np.arange(20) % 2, r"Move the channels to the end: np.moveaxis\(x, 1, -1\)"),
        (inputs[:, 0], np.full(20, np.nan), "targets has values that are no finite numbers"),
        (inputs[:, 0], np.arange(20) + 10**9, r"1,000,000,020 classes of 20 examples"),
    ):
        np.savez(tmp_path / "w.npz", x=x, y=y)
        with pytest.raises(ValueError, match=words):
            make("wrong", "arrays", "w.npz")
    (tmp_path / "p.txt").write_text("a rose is a rose. " * 100)
    _, config, model, _ = make("poem", "text", "p.txt")
    assert model.output_shape == (None, 64, len(set("a rose is a rose. "))) and config.objective["labels"] == "targets"
    np.savez(tmp_path / "b.npz", first=np.zeros(9), second=np.zeros(9))
    with pytest.raises(ValueError, match=r"which array is predicted is not known. .* It has: first, second"):
        make("none", "arrays", "b.npz")


def test_a_script_and_a_batch_file_where_slurm_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for program, text in (("sbatch", ""), ("sinfo", "echo 'gpu:a100:4(S:0-1)'; echo '(null)'")):
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = new.write(pathlib.Path("mine"), "script")
    assert "tfdist run --workdir=runs/mine mine.py" in said
    job = (tmp_path / "mine" / "job.sbatch").read_text()
    assert "#SBATCH --gpus-per-node=4\n" in job and "#SBATCH --ntasks-per-node=4\n" in job
    # The last lines, with programs of other names: code 75 requeues the job.
    end = "(exit 75)\n" + job[job.index("code=$?") :].replace("scontrol", "echo")
    done = subprocess.run(["/bin/bash", "-c", end], env={"SLURM_JOB_ID": "7"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (75, "requeue 7\n")
    compile((tmp_path / "mine" / "mine.py").read_text(), "mine.py", "exec")
    with pytest.raises(ValueError, match=r"mine exists and is not empty"):
        new.write(pathlib.Path("mine"), "script")
    with pytest.raises(ValueError, match=r"'2nd' is no name .* such as run_2nd"):
        new.write(pathlib.Path("2nd"), "script")
    with pytest.raises(FileNotFoundError, match=r"--images=none: there is no folder"):
        new.write(pathlib.Path("other"), "images", "none")
    monkeypatch.setenv("PATH", str(tmp_path / "mine"))
    assert set(templates.of_script("mine")) == {"mine.py", "README.md"}


def test_pages_are_listed_and_printed(capsys):
    pages.main(["docs"])
    listed = capsys.readouterr().out
    assert "  guide " in listed and re.search(r"^  your-data +Your data$", listed, re.MULTILINE)
    for word, file in {
        "your-data": "docs/your-data.md",
        "docs/your-data.md": "docs/your-data.md",
        "launch/slurm.sbatch": "launch/slurm.sbatch",
        "docs/courses/line_exercise.py": "docs/courses/line_exercise.py",
    }.items():
        pages.main(["docs", word])
        assert capsys.readouterr().out == (REPOSITORY / file).read_text()
    for word in ("quokka", "launch/../pyproject.toml"):
        with pytest.raises(ValueError, match=f"there is no page '{word}'"):
            pages.main(["docs", word])
