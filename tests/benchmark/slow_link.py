"""A real slow link on this machine: two network namespaces joined by a cable of limited rate. Linux, root only."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

from tests.benchmark.rounds import Hosts

# The link's name in both namespaces.
INTERFACE = "link0"
_HOSTS = ("10.213.77.1", "10.213.77.2")


@contextlib.contextmanager
def slow(rate: str) -> Iterator[Hosts]:
    """Creates two network namespaces joined by a link of `rate`, such as "100mbit" or "1gbit", in each direction.

    Raises:
        ValueError: this process is not root's, or `ip` and `tc` (iproute2) are missing or fail.
    """
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        raise ValueError(f"--link={rate} creates network namespaces: it needs root and iproute2 (ip, tc).")
    names = [f"tfdist-{os.getpid()}-{side}" for side in range(2)]
    try:
        for name in names:
            _do(f"ip netns add {name}")
        _do(f"ip -n {names[0]} link add {INTERFACE} type veth peer name {INTERFACE} netns {names[1]}")
        for name, host in zip(names, _HOSTS, strict=True):
            _do(f"ip -n {name} addr add {host}/24 dev {INTERFACE}")
            _do(f"ip -n {name} link set {INTERFACE} up")
            _do(f"ip -n {name} link set lo up")
            _do(f"tc -n {name} qdisc add dev {INTERFACE} root tbf rate {rate} burst 1mb latency 50ms")
        yield Hosts(prefixes=[["ip", "netns", "exec", name] for name in names], names=_HOSTS)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"--link: {command!r} failed: {done.stderr.strip()}")
