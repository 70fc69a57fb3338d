"""The scripts of the pages for people who come from elsewhere run on two workers."""

import csv
import pathlib
import re
import sys

import numpy as np
import pytest
from launching import REPOSITORY, run_all
from pages import blocks, scripts
from topologies import command, environments, records


@pytest.fixture
def lab(tmp_path):
    """A folder with images of MNIST's shape that can be told apart."""
    rng = np.random.default_rng(0)
    patterns, arrays = rng.integers(0, 200, (10, 28, 28)), {}
    for split, count in (("train", 520), ("test", 100)):
        labels = np.arange(count) % 10
        arrays[f"x_{split}"] = (patterns[labels] + rng.integers(0, 56, (count, 28, 28))).astype(np.uint8)
        arrays[f"y_{split}"] = labels.astype(np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    return tmp_path


def on_workers(directory: pathlib.Path, line: list[str], workers: int) -> list[str]:
    """Runs a command in `directory` on `workers` workers; returns the output of each."""
    paths = {"PYTHONPATH": f"{directory}:{REPOSITORY}"}
    return run_all([line] * workers, [env | paths for env in environments(workers)], timeout=900.0, cwd=directory)


def script(
    lab: pathlib.Path, page: str, name: str, shortened: tuple[str, str] = ("", ""), workers: int = 1
) -> list[str]:
    """Writes the files of a page into `lab`, and runs one of them; all are Python, whether or not they run here."""
    for file, text in scripts(page).items():
        compile(text, file, "exec")
        (lab / file).write_text(text.replace(*shortened))
    return on_workers(lab, [sys.executable, name], workers)


@pytest.mark.slow
def test_from_fit(lab):
    chief, other = script(lab, "from-fit.md", "my_fit.py", workers=2)
    assert float(re.search(r"^test accuracy (\S+)$", chief, re.MULTILINE)[1]) > 0.5
    assert len(re.findall(r"^Epoch \d/3\n5/5 - .*val_loss", chief, re.MULTILINE)) == 3
    assert "test accuracy" not in other and "Epoch" not in other
    with open(lab / "log.csv") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]
    assert (lab / "mnist.keras").exists() and (lab / "runs/mnist/finished.json").exists()


@pytest.mark.slow
def test_own_step(lab):
    found = blocks((REPOSITORY / "docs/own_step.md").read_text(), "python")
    for number, text in enumerate(found):
        compile(text, f"block {number}", "exec")
    (lab / "my_vae.py").write_text(found[0] + "print(*history.history['loss'])\n")
    (output,) = on_workers(lab, [sys.executable, "my_vae.py"], 1)
    first, second = map(float, output.splitlines()[-1].split())
    assert second < first


@pytest.mark.slow
def test_from_horovod(lab):
    shortened = ("WARMUP_EPOCHS = 24, 3", "WARMUP_EPOCHS = 3, 3")
    chief, other = script(lab, "from-horovod.md", "my_horovod.py", shortened, workers=2)
    rates = re.findall(r"learning_rate: (\S+)$", chief, re.MULTILINE)
    # 0.001 for each replica, after three epochs of warm-up; a batch is 128 for each of them.
    assert rates == ["6.6667e-04", "0.0013", "0.0020"] and "Epoch 3/3\n3/3" in chief and "Epoch" not in other
    written = sorted(path.name for path in lab.glob("runs/from_horovod/*.h5"))
    assert written == [f"epoch-{n}.weights.h5" for n in (1, 2, 3)] and not list(lab.glob("*.h5"))


@pytest.mark.slow
def test_from_ddp(lab):
    chief, _ = script(lab, "from-ddp.md", "my_ddp.py", workers=2)
    losses = [float(loss) for loss in re.findall(r"^Epoch \d/3\n5/5 - .* loss: (\S+)$", chief, re.MULTILINE)]
    assert len(losses) == 3 and losses[2] < losses[0]


@pytest.mark.slow
def test_from_a_loop(lab):
    for file, text in scripts("from-tf-distribute.md").items():
        compile(text, file, "exec")
        (lab / file).write_text(text)
    on_workers(lab, command(lab / "runs/loop", config="my_loop_config.py"), workers=1)
    evaluations = [record["accuracy"] for record in records(lab / "runs/loop", "evaluation")]
    assert len(evaluations) == 3 and evaluations[-1] > 0.5


@pytest.mark.slow
def test_weights_in_one_place_are_those_of_mirrored_ones(tmp_path):
    # The weights must have moved, or equal ones would show nothing.
    moved = "print('moved:', max(np.abs(b).max() for b in central[1::2]))\n"
    (tmp_path / "central_storage.py").write_text(scripts("consistency.md")["central_storage.py"] + moved)
    (output,) = on_workers(tmp_path, [sys.executable, "central_storage.py"], 1)
    difference, moved = (re.search(rf"^{name}: (\S+)$", output, re.M)[1] for name in ("largest difference", "moved"))
    assert float(difference) < 1e-6 and float(moved) > 1e-3
