"""README's command and the example of docs/your-config.md, run as they stand there."""

import json
import pathlib
import re
import shlex
import sys

import forked
import numpy as np
import pytest
from launching import REPOSITORY, worker_environment

README = REPOSITORY / "README.md"
OWN_CONFIG = REPOSITORY / "docs" / "your-config.md"


def blocks(page: pathlib.Path, language: str) -> list[str]:
    """The fenced blocks of a language in a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(command: str, directory: pathlib.Path) -> str:
    """Runs a command of README with this Python, and returns what it printed."""
    words = [sys.executable if word in ("python", ".venv/bin/python") else word for word in shlex.split(command)]
    done = forked.run(
        words, cwd=directory, env=worker_environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_command_trains_as_readme_says_and_then_says_it_is_finished(tmp_path):
    install, train = blocks(README, "bash")[0].strip().rsplit(" && ", 1)
    assert "pip install" in install
    (tmp_path / "configs").symlink_to(REPOSITORY / "configs")
    run(train, tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs/digits/metrics.jsonl").read_text().splitlines()]
    assert [line for line in lines if line["kind"] == "evaluation"][-1]["accuracy"] > 0.97
    for name in ("config.json", "environment.json", "finished.json", "model.keras", "tensorboard", "checkpoints"):
        assert (tmp_path / "runs/digits" / name).exists(), name
    assert "finished" in run(train, tmp_path)


@pytest.fixture
def lab(tmp_path):
    """The functions and the config of docs/your-config.md, with data for them."""
    for block in blocks(OWN_CONFIG, "python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
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
