"""The roster in the log of a run with many workers."""

import pytest

from tfdist.cluster.cluster import Cluster

NOTE = "malloc keeps freed memory"


@pytest.mark.parametrize(
    ("workers", "end"),
    [
        (16, ["worker 15", NOTE]),
        (17, ["worker 15", "and 1 more worker", NOTE]),
        (1016, ["worker 15", "and 1,000 more workers", NOTE]),
    ],
)
def test_of_many_workers_the_log_names_the_first(workers, end):
    roster = (*(f"worker {rank}" for rank in range(workers)), NOTE)
    size = {"num_workers": workers, "num_replicas": workers}
    cluster = Cluster(strategy=None, rank=0, implementation="ring", roster=roster, monitor=None, **size)
    short = cluster.short_roster
    assert short[:16] == list(roster[:16]) and short[15:] == end
