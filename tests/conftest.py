"""Fixtures that several files of tests use."""

import signal

import pytest
from processes import REPOSITORY
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


@pytest.fixture
def own_signals():
    """Gives pytest its signals back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def own_process(own_signals, monkeypatch):
    """Finds tests.support.lab as `python -m tfdist.main` does, and gives pytest its signals back."""
    monkeypatch.syspath_prepend(REPOSITORY)
