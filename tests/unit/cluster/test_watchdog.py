"""The watchdog process of a worker."""

import os
import pathlib
import re
import signal
import time

import processes
import pytest

from tfdist import config
from tfdist.cluster.control import heartbeat_monitor, keys, listener, watchdog


@pytest.fixture
def started():
    """Returns a function that starts the watchdog process of the chief of so many workers, of which no other comes."""
    monitors = []

    def start(size):
        members = [{"rank": rank, "address": "localhost:1", "host": f"n{rank:05d}.example.org"} for rank in range(size)]
        members = [one | {"pid": os.getpid() + one["rank"], "heartbeat_port": 1} for one in members]
        waiting, options = listener.listen(0), config.ClusterOptions(connect_seconds=600.0)
        monitors.append(
            watchdog.start(rank=0, members=members, listener=waiting, options=options, key=keys.Key(b"k" * 64))
        )
        monitors[-1].exiting.acquire()  # After a loss this process would be ended.
        return monitors[-1]

    yield start
    heartbeat_monitor._monitor = None
    for monitor in monitors:
        monitor.all_finished.set()
        monitor.watchdog.kill()
        monitor.watchdog.wait()


def test_the_names_of_thousands_of_workers_fit(started):
    """On the command line of the watchdog, 128 KiB would be the limit: the start failed with E2BIG."""
    monitor = started(3000)
    monitor.tell({"started": True})
    monitor.mark_lost("worker 2999 is lost")
    assert monitor.loss_known.wait(60) and monitor.loss["lost"] == "worker 2999 is lost"


def test_signals_that_reach_all_processes_of_a_step_leave_the_watchdog(started):
    """It sends heartbeats for a worker that saves after the signal; Ctrl-C by scancel ended it with a stack."""
    monitor = started(2)
    pid = monitor.watchdog.pid
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)

    def ignores_all():
        (mask,) = re.findall(r"SigIgn:\s*(\w+)", pathlib.Path(f"/proc/{pid}/status").read_text())
        return all(int(mask, 16) >> (number - 1) & 1 for number in numbers)

    processes.until(ignores_all, 30)
    for number in numbers:
        os.kill(pid, number)
    time.sleep(0.5)
    assert monitor.watchdog.poll() is None
