"""The watchdog of TensorFlow's start, for as many workers as a large job has."""

import time

from tfdist.cluster.liveness import startup_watchdog


def test_the_names_of_thousands_of_workers_fit():
    """On the command line of the watchdog, 128 KiB would be the limit: the start failed with E2BIG."""
    members = [
        {"rank": rank, "address": f"localhost:{1 + rank % 9}", "host": f"n{rank:05d}.cluster.example.org", "pid": rank}
        for rank in range(3000)
    ]
    started = time.monotonic()
    with startup_watchdog.deadline(0, members, 600.0):
        pass
    assert time.monotonic() - started < 60.0
