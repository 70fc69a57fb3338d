"""What several files of this directory compare with."""

import pytest
from launching import train_alone


@pytest.fixture(scope="module", autouse=True)
def as_started_by_slurm(graph_optimizers):
    """Optimizes the graphs of the processes to compare with."""


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """The weights of one worker that no launcher has started."""
    return train_alone(tmp_path_factory.mktemp("alone"))
