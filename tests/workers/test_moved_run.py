"""A run that was saved on 4 replicas resumes on more or fewer: the same examples, the same weights.

On 2, in every run of the tests: test_same_run.py.
"""

import pytest
import topologies
from parameters import slow_except

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
    moved = topologies.cut_back(on_four, tmp_path / "moved")
    topologies.train(moved, *OPTIONS, workers=workers, devices=devices)
    topologies.assert_resumed_as(on_four, moved)
