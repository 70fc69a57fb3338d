"""How hosts, ranks and addresses are written: lists in Slurm's notation, `host:port`. Imports no TensorFlow."""

import re
from collections.abc import Iterable, Sequence


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Writes hosts in Slurm's notation, each once, in their order: n9, n10, n12, login -> `n[9-10,12],login`."""
    # (what precedes and follows the last number of the names, its ranges: first and last, as written).
    groups: list[tuple[tuple[str, str], list[list[str]]]] = []
    for host in dict.fromkeys(hosts):
        prefix, number, suffix = re.fullmatch(r"(.*?)(\d*)(\D*)", host).groups()
        if not groups or groups[-1][0] != (prefix, suffix) or not number:
            groups.append(((prefix, suffix), []))
        ranges = groups[-1][1]
        if ranges and number == str(int(ranges[-1][1]) + 1).zfill(len(ranges[-1][0])):
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    names = []
    for (prefix, suffix), ranges in groups:
        text = ",".join(first if first == last else f"{first}-{last}" for first, last in ranges)
        names.append(f"{prefix}[{text}]{suffix}" if text != ranges[0][0] else f"{prefix}{text}{suffix}")
    return ",".join(names)


def ranges(numbers: Iterable[int], separator: str = ", ") -> str:
    """Writes ascending numbers as ranges: 0, 1, 2, 5 -> `0-2, 5`."""
    return compress_hostlist(map(str, numbers)).strip("[]").replace(",", separator)


def describe_others(hosts: Sequence[str]) -> str:
    """Returns a line about the hosts of workers that are not listed, such as `and 2 more workers on n[3-4]`, or ""."""
    number = f"{len(hosts):,} more workers" if len(hosts) > 1 else "1 more worker"
    return f"and {number} on {compress_hostlist(hosts)}" if hosts else ""


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port` or `[IPv6]:port`; raises ValueError if it is no address."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host and not address.startswith("[")):
        raise ValueError(f'An address must be written "host:port". Received: {address!r}')
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Writes `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
