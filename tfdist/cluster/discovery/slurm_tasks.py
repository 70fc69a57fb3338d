"""Reads Slurm's notations for hosts and tasks, and lays out tasks as Slurm does. Imports no TensorFlow."""

import itertools
import re
from collections.abc import Iterator, Sequence


def expand_hostlist(hostlist: str) -> list[str]:
    """Expands a Slurm host list: `n[08-10,12],r[1-2]n[1-2]-ib` -> n08, n09, n10, n12, r1n1-ib, ...

    Returns:
        The hosts in Slurm's order, which is the order of the ranks, not the alphabet: `n[9-10]` -> n9, n10.
    """
    hosts = []
    # A comma separates hosts unless it is inside brackets.
    for name in re.split(r",(?![^\[]*\])", hostlist):
        segments = re.split(r"\[([^\[\]]*)\]", name)  # Alternating: text, ranges.
        if not name or any(set("[] ") & set(text) for text in segments[::2]):
            raise ValueError(f"Not a valid Slurm host list, such as n[1-3,5]. Received: {hostlist!r}")
        choices = [list(_range(text, hostlist)) if i % 2 else [text] for i, text in enumerate(segments)]
        hosts.extend("".join(parts) for parts in itertools.product(*choices))
    return hosts


def _range(text: str, hostlist: str) -> Iterator[str]:
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
