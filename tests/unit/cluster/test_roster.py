"""The roster in the log and in environment.json, and hosts in Slurm's notation."""

import pytest

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.discovery.roster import Roster


def make_roster(workers: int) -> Roster:
    members = [
        {"host": f"n{1 + rank // 4:02}", "pid": 100 + rank, "devices": "1 CPU", "address": f"port {rank}"}
        for rank in range(workers)
    ]
    return Roster(workers=members, communication="RING", notes=("a note",), details=("a detail",))


@pytest.mark.parametrize(("workers", "end"), [(16, []), (1016, ["and 1,000 more on n[05-254]"])])
def test_log_lists_sixteen_workers_and_the_hosts_of_the_others(workers, end):
    roster = make_roster(workers)
    assert roster.lines()[1] == f"worker 1 of {workers}: host n01, pid 101, 1 CPU, RING at port 1"
    assert roster.short_lines(verbose=False) == [*roster.lines()[:16], *end, "a note"]
    assert roster.short_lines(verbose=True) == [*roster.lines()[:16], *end, "a note", "a detail"]


@pytest.mark.parametrize(
    ("hosts", "written"),
    [
        (["n9", "n10", "n12", "login"], "n[9-10,12],login"),
        (["n098", "n099", "n100"], "n[098-100]"),
        (["gpu7.site", "gpu8.site", "gpu8.other"], "gpu[7-8].site,gpu8.other"),
    ],
)
def test_hostlist_is_compressed_as_slurm_writes_it(hosts, written):
    assert hostlist.compress_hostlist(hosts) == written
    assert hostlist.expand_hostlist(written) == list(dict.fromkeys(hosts))
