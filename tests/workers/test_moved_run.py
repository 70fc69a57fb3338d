"""A run that was saved on 4 replicas resumes on more or fewer: the same examples, the same weights.

On 2, in every run of the tests: test_same_run.py.
"""

import shutil

import numpy as np
import pytest
import topologies
from parameters import slow_except

from tfdist.training import checkpointing

# 24 examples a step are divided by 1, 2, 3, 4 and 8 replicas.
OPTIONS = [
    "--config.model={'target': 'tests.support.lab:linear', 'num_classes': 10, 'l2': 1e-3}",
    *("--config.data.batch_size=24", "--config.data.evaluation_batch_size=24"),
    *("--config.evaluation.every.steps=none", "--config.checkpoint.keep=2", "--config.checkpoint.export=false"),
]


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    """The workdir of a run on 2 workers of 2 devices: 20 steps, saved after the 10th and the last."""
    workdir = tmp_path_factory.mktemp("four")
    topologies.train(workdir, *OPTIONS, workers=2, devices=2)
    return workdir


@pytest.mark.parametrize(("workers", "devices"), slow_except([(3, 1), (1, 8)], []))
def test_a_run_of_four_replicas_resumes_on_other_devices(on_four, tmp_path, workers, devices):
    moved = tmp_path / "moved"
    shutil.copytree(on_four, moved)
    (moved / checkpointing.FINISHED).unlink()
    shutil.rmtree(moved / "checkpoints" / "step-00000020")
    topologies.train(moved, *OPTIONS, workers=workers, devices=devices)
    first, second = (topologies.arrays(workdir) for workdir in (on_four, moved))
    assert topologies.largest_difference(first, second) < 1e-5
    events = [line["text"] for line in topologies.records(moved, "event")]
    assert f"resumed from {moved}/checkpoints/step-00000010" in events
    ours, theirs = (topologies.records(workdir, "train") for workdir in (moved, on_four))
    assert [line["step"] for line in ours] == [line["step"] for line in theirs] == list(range(1, 21))
    assert [line["learning_rate"] for line in ours] == [line["learning_rate"] for line in theirs]
    # The loss of a step tells which examples it had.
    losses = [np.array([line["loss"] for line in lines]) for lines in (ours, theirs)]
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-6)
    assert len(set(losses[0].round(5))) == 20
