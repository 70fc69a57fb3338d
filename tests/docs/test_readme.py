"""README's command and the example of docs/your-config.md, run as they stand there."""

import json
import pathlib
import shlex

import numpy as np
import pytest
from launching import REPOSITORY, python
from pages import blocks, scripts
from topologies import records

README = REPOSITORY / "README.md"


def run(command: str, directory: pathlib.Path) -> str:
    """Runs a command of README with this Python, and returns what it printed."""
    program, *words = shlex.split(command)
    assert program in ("python", ".venv/bin/python")
    return python(*words, cwd=directory).stdout


def test_the_first_command_trains_as_readme_says_and_then_says_it_is_finished(tmp_path):
    install, train = blocks(README.read_text(), "bash")[0].strip().rsplit(" && ", 1)
    assert "pip install" in install
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    run(train, tmp_path)
    assert records(tmp_path / "runs/digits", "evaluation")[-1]["accuracy"] > 0.97
    for name in ("config.json", "environment.json", "finished.json", "model.keras", "tensorboard", "checkpoints"):
        assert (tmp_path / "runs/digits" / name).exists(), name
    assert "finished" in run(train, tmp_path)


@pytest.fixture
def lab(tmp_path):
    """The functions and the config of docs/your-config.md, with data for them."""
    for name, text in scripts("your-config.md").items():
        (tmp_path / name).write_text(text)
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 512), ("test", 64)):
        arrays[f"x_{split}"] = generator.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    np.savez(tmp_path / "my.npz", **arrays)
    return tmp_path


@pytest.mark.slow
def test_the_functions_and_the_config_of_your_config_train(lab):
    run("python -m tfdist.main --config=my_config.py --workdir=mine --config.train.epochs=2", lab)
    assert json.loads((lab / "mine/finished.json").read_text())["step"] == 4
