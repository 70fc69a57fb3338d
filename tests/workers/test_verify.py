"""`tfdist verify`: an honest run is not refused, and changed weights, lines and data are found."""

import json
import shutil

import numpy as np
import pytest
import topologies
from launching import python

from tfdist.checkpoint import format as checkpoint_format

OPTIONS = [
    "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10}",
    *("--config.train.steps=12", "--config.checkpoint.every.steps=4", "--config.report.every.steps=2"),
    *("--config.evaluation.every.steps=none", "--config.checkpoint.export=false", "--config.report.state_hash=reports"),
]


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The workdir of a run with checkpoints of the steps 4, 8 and 12."""
    workdir = tmp_path_factory.mktemp("honest") / "run"
    topologies.train(workdir, *OPTIONS)
    return workdir


def verify(workdir, *options):
    """Returns the exit code and the lines of the command."""
    done = python("-m", "tfdist", "verify", workdir, *options, code=None)
    return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()


def copy(honest, tmp_path):
    return shutil.copytree(honest, tmp_path / "changed")


def test_an_unchanged_run_has_the_recorded_hashes(honest):
    before = {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}
    code, lines = verify(honest, "--intervals=3")
    assert code == 0, lines
    (line,) = [line for line in lines if line.startswith("all hashes are equal: ")]
    assert "4 kept states, and 3 of 3 intervals" in line and "0 to 4, 4 to 8, 8 to 12" in line
    assert before == {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_changed_line_is_found(honest, tmp_path):
    changed = copy(honest, tmp_path)
    lines = [json.loads(line) for line in (changed / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "state" and line["step"] == 6:
            line["hash"] = "0" * 16
    (changed / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, lines = verify(changed, "--intervals=3")
    assert code == 1
    (found,) = [line for line in lines if line.startswith("after step")]
    assert found.startswith("after step 6, trained again from 4: ") and found.endswith("metrics.jsonl has " + "0" * 16)


def test_changed_weights_are_found_without_training(honest, tmp_path):
    changed = copy(honest, tmp_path)
    saved = checkpoint_format.verify(changed / "checkpoints" / "step-00000008")
    arrays = dict(checkpoint_format.read(saved, list(saved.arrays)))
    arrays["model/logits/kernel"].view(np.int32)[0, 0] ^= 1
    shutil.rmtree(saved.path)  # A checkpoint that is there is not written again.
    checkpoint_format.write(changed / "checkpoints", 8, arrays, saved.state)
    code, lines = verify(changed, "--intervals=0")
    assert code == 1 and [line.split(":")[0] for line in lines if "metrics.jsonl has" in line] == ["state of step 8"]


@pytest.mark.slow
def test_other_data_and_other_steps_are_found(honest, tmp_path):
    changed = tmp_path / "other"
    other = "--config.data.prepare={'target': 'tfdist.zoo.prepare:image', 'scale': 0.0626, 'pad': 1, 'flip': True}"
    topologies.train(changed, *OPTIONS, other)
    shutil.copy(honest / "config.json", changed)
    code, lines = verify(changed, "--intervals=3")
    assert code == 1 and any(line.startswith("after step 1, trained again from 0:") for line in lines)
