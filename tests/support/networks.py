"""Two network namespaces on this machine, joined by a virtual cable that can be pulled. Needs root."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator


def namespaces_missing() -> str | None:
    """Why this machine has no network namespaces for tests; None where it has."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    absent = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} on this machine"
    trial = subprocess.run(["unshare", "--net", "ip", "link", "add", "type", "veth"], capture_output=True, text=True)
    return f"root may not make network devices here: {trial.stderr.strip()}" if trial.returncode else None


def address(host: int) -> str:
    """The address of host 0, n9, or host 1, n10."""
    return f"10.209.0.{1 + host}"


@contextlib.contextmanager
def two_hosts() -> Iterator[list[list[str]]]:
    """Makes two hosts joined by a cable; yields, for each, the command prefix that runs a command there."""
    with contextlib.ExitStack() as stack:
        holders = []
        for _ in range(2):
            holder = subprocess.Popen(["unshare", "--net", "--uts", "sleep", "3600"])
            stack.callback(holder.wait)
            stack.callback(holder.kill)
            holders.append(holder.pid)
        outside = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "uts")}
        for pid in holders:
            while any(os.readlink(f"/proc/{pid}/ns/{name}") == link for name, link in outside.items()):
                time.sleep(0.02)
        hosts = [["nsenter", f"--target={pid}", "--net", "--uts"] for pid in holders]
        cable = f"ip link add eth0 type veth peer name eth0 netns {holders[1]}"
        subprocess.run([*hosts[0], *cable.split()], check=True)
        for index, host in enumerate(hosts):
            own = f"ip address add {address(index)}/24 dev eth0"
            for line in (f"hostname n{9 + index}", "ip link set lo up", own, "ip link set eth0 up"):
                subprocess.run([*host, *line.split()], check=True)
        yield hosts


def set_cable(host: list[str], state: str) -> None:
    """Pulls ("down") or plugs in ("up") the cable at one of the hosts."""
    subprocess.run([*host, "ip", "link", "set", "eth0", state], check=True)
