"""What several files of this directory compare with."""

import forked
import pytest
import topologies
from launching import run_all, train_command, worker_environment


@pytest.fixture(scope="module", autouse=True)
def as_started_by_slurm(graph_optimizers):
    """Optimizes the graphs of the processes to compare with."""


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """The arrays of the run of one worker that no launcher has started."""
    workdir = tmp_path_factory.mktemp("alone")
    run_all([train_command(workdir)], [worker_environment(**{forked.OPTIMIZE: "1"})])
    return topologies.arrays(workdir)
