"""Fixtures that several files of tests use."""

import pytest
from slurm_cluster import slurm_cluster, slurm_missing


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A real Slurm of two nodes whose order as text, n10 before n9, is not Slurm's.

    Each has two GPUs, which exist for Slurm alone: TensorFlow finds none, and trains on the CPU.
    """
    if reason := slurm_missing():
        pytest.skip(reason)
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=("n9", "n10"), gpus=2) as cluster:
        yield cluster
