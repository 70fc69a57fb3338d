"""A real slow link on this machine: two network namespaces joined by a cable of limited rate. Linux, root only."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator

from tests.benchmark.rounds import Hosts
from tests.support import networks

# The link's name on both hosts.
INTERFACE = "eth0"


@contextlib.contextmanager
def slow(rate: str) -> Iterator[Hosts]:
    """Makes two hosts joined by a link of `rate`, such as "100mbit" or "1gbit", in each direction.

    Raises:
        ValueError: this process is not root's, or `ip` and `tc` (iproute2) are missing or fail.
    """
    problem = networks.namespaces_missing() or (None if shutil.which("tc") else "no tc on this machine")
    if problem:
        raise ValueError(f"--link={rate}: {problem}")
    with networks.two_hosts() as hosts:
        for host in hosts:
            limit = f"tc qdisc add dev {INTERFACE} root tbf rate {rate} burst 1mb latency 50ms"
            done = subprocess.run([*host, *limit.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ValueError(f"--link={rate}: {limit!r} failed: {done.stderr.strip()}")
        yield Hosts(prefixes=hosts, names=[networks.address(0), networks.address(1)])
