"""Code and settings that decide the numbers are those of all workers; after a stop, what has changed is named."""

import json
import pathlib
import sys

import processes
import pytest
from launching import REPOSITORY
from topologies import environments

LAB = """
import tensorflow as tf

if __file__.split("/")[-2] == "chief":
    import only_on_the_chief

def prepare(batch, seeds, *, training):
    return {"image": tf.cast(batch["image"], tf.float32) / SCALE, "label": batch["label"]}
"""
CONFIG = """
from tfdist import config as c

def get_config():
    return c.Config(
        model={"target": "tfdist.zoo.models:mlp", "num_classes": 10, "input_shape": (8, 8, 1)},
        data=c.Data(prepare={"target": "lab_of_worker:prepare"}, batch_size=48),
        train=c.Train(steps=4),
        report=c.Report(tensorboard=False),
    )
"""
SCRIPT = """
import keras
import numpy as np

model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
import helper_of_worker

model.compile("sgd", helper_of_worker.loss)
x = np.ones((16, 3), np.float32)
model.fit(x, x[:, :1], batch_size=8, verbose=0)
"""


@pytest.fixture
def clones(tmp_path):
    """A folder for each of two workers, with the same code but for what the second does not import."""
    folders = [tmp_path / role for role in ("chief", "other")]
    for folder in folders:
        (folder / "configs").mkdir(parents=True)
        write_lab(folder, 16)
        (folder / "only_on_the_chief.py").write_text(f"ROLE = {folder.name!r}")
        (folder / "configs" / "small.py").write_text(CONFIG)
    return folders


def write_lab(folder: pathlib.Path, scale: int) -> None:
    (folder / "lab_of_worker.py").write_text(LAB.replace("SCALE", str(scale)))


def start(folders: list[pathlib.Path], words: list[str], **second: str) -> tuple[list[int], list[str]]:
    """Runs a worker in each folder; returns the exit codes and outputs. `second`: more variables of the second."""
    paths = {"PYTHONPATH": str(REPOSITORY)}
    found = environments(len(folders), **paths)
    found[-1] |= second
    done = processes.at_once(
        *(
            lambda folder=folder, env=env: processes.run([[sys.executable, "-m", *words]], [env], cwd=folder)
            for folder, env in zip(folders, found, strict=True)
        )
    )
    return [codes[0] for codes, _ in done], [outputs[0] for _, outputs in done]


def test_workers_with_other_code_or_settings_are_refused_before_they_connect(clones, tmp_path, monkeypatch):
    """Both trained, each on its own scale of the images, without a word."""
    write_lab(clones[1], 255)
    (tmp_path / "keras.json").write_text(json.dumps({"image_data_format": "channels_first"}))
    settings = {"KERAS_HOME": str(tmp_path), "NVIDIA_TF32_OVERRIDE": "0", "XLA_FLAGS": "--xla_dump_to=/here"}
    settings["TF_ENABLE_ONEDNN_OPTS"] = "0"
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # Of the first.
    command = ["tfdist.main", "--config=configs/small.py", f"--workdir={tmp_path / 'run'}"]
    codes, outputs = start(clones, command, **settings)
    assert codes == [1, 1], outputs
    for said in outputs:
        lines = said.partition("The workers differ:\n")[2].splitlines()
        assert [line.split(":")[0].strip() for line in lines if " on rank " in line] == [
            *("image_data_format", "NVIDIA_TF32_OVERRIDE", "file lab_of_worker.py"),
            "oneDNN, of TF_ENABLE_ONEDNN_OPTS",
        ], said


@pytest.mark.slow
def test_the_same_code_in_two_folders_trains_and_a_change_is_named_as_it_resumes(clones, tmp_path):
    command = ["tfdist.main", "--config=configs/small.py", f"--workdir={tmp_path / 'run'}"]
    codes, outputs = start(clones, command)
    assert codes == [0, 0], outputs
    (tmp_path / "run" / "finished.json").unlink()
    write_lab(clones[1], 255)
    codes, outputs = start(clones[1:], command, XLA_FLAGS="--xla_cpu_enable_fast_min_max=true")
    assert codes == [0] and "WARNING: changed since this run's last start: lab_of_worker.py, XLA_FLAGS." in outputs[0]
    (tmp_path / "run" / "finished.json").unlink()
    codes, outputs = start(clones[1:], command, XLA_FLAGS="--xla_cpu_enable_fast_min_max=true")
    assert codes == [0] and "WARNING: changed" not in outputs[0]


@pytest.mark.slow
def test_a_file_that_a_script_imports_later_is_compared_before_it_trains(clones):
    for folder, scale in zip(clones, (1.0, 2.0), strict=True):
        (folder / "script.py").write_text(SCRIPT)
        (folder / "helper_of_worker.py").write_text(f"def loss(y, found):\n    return {scale} * (y - found) ** 2")
    codes, outputs = start(clones, ["tfdist.run", "script.py"])
    assert codes[1] == 1 and "Worker 1 has other code than worker 0: helper_of_worker.py." in outputs[1], outputs
