"""Formats and parses hosts, ranks, counts and addresses: Slurm's notations, `host:port`. No TensorFlow."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Writes hosts in Slurm's notation, each once, in their order: n9, n10, n12, login -> `n[9-10,12],login`."""
    # Consecutive hosts whose names differ only in their last number form a group: (text before and after that number,
    # and its ranges: [first, last] as written).
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


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port` or `[IPv6]:port`; raises ValueError if it is not an address."""
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or (":" in host and not address.startswith("[")):
        raise ValueError(f'An address must be written "host:port". Received: {address!r}')
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Writes `host:port`, or `[host]:port` for an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def expand_hostlist(hostlist: str) -> list[str]:
    """Expands a Slurm host list: `n[08-10,12],r[1-2]n[1-2]-ib` -> n08, n09, n10, n12, r1n1-ib, ...

    Returns:
        The hosts in Slurm's order, which is the order of the ranks, not alphabetical: `n[9-10]` -> n9, n10.
    """
    hosts = []
    # A comma separates hosts unless it is inside brackets.
    for name in re.split(r",(?![^\[]*\])", hostlist):
        segments = re.split(r"\[([^\[\]]*)\]", name)  # Alternating: text, ranges.
        if not name or any(set("[] ") & set(text) for text in segments[::2]):
            raise ValueError(f"Not a valid Slurm host list, such as n[1-3,5]. Received: {hostlist!r}")
        choices = [list(_numbers(text, hostlist)) if i % 2 else [text] for i, text in enumerate(segments)]
        hosts.extend("".join(parts) for parts in itertools.product(*choices))
    return hosts


def _numbers(text: str, hostlist: str) -> Iterator[str]:
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None or int(match.group(2) or match.group(1)) < int(match.group(1)):
            raise ValueError(f"[{text}] is not a range of numbers, such as [1-3,5]. Received: {hostlist!r}")
        first, last = match.group(1), match.group(2) or match.group(1)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def expand_counts(counts: str) -> list[int]:
    """Expands a Slurm list of counts, `2(x3),1` -> [2, 2, 2, 1], or raises ValueError."""
    result = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"Not a valid Slurm list of counts, such as 2(x3),1. Received: {counts!r}")
        result.extend([int(match.group(1))] * int(match.group(2) or 1))
    return result


def lay_out(counts: Sequence[int], plane: int) -> list[tuple[int, int]]:
    """Distributes tasks to nodes as Slurm does: `plane` tasks to each node in turn, until each has its count.

    A plane of 1 is Slurm's cyclic distribution, one of `max(counts)` its block distribution.

    Args:
        counts: tasks of each node.
        plane: tasks assigned to a node at a time, at least 1.

    Returns:
        (index of the node, index of the task on that node) for each rank in order.
    """
    placed = [0] * len(counts)
    layout = []
    while len(layout) < sum(counts):
        for node, count in enumerate(counts):
            for _ in range(min(plane, count - placed[node])):
                layout.append((node, placed[node]))
                placed[node] += 1
    return layout
