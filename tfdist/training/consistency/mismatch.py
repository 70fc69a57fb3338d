"""Describes which replicas or workers differ, and in which hashes."""

import collections
from collections.abc import Sequence

import numpy as np

from tfdist.cluster.cluster import Cluster
from tfdist.config import text as text_lib
from tfdist.training.consistency import hashing

_MAX_NAMED = 10


def describe_mismatch(names: Sequence[str], found: np.ndarray, replicas: Sequence[str]) -> tuple[list[str], str]:
    """Describes which hashes differ.

    Args:
        found: int64 [replicas, names], with a difference.

    Returns:
        (lines, who): a line for each name whose hashes differ, with each hash and its replicas, the most frequent first
        (in a tie, the chief's); and which replicas differ from most others, or from the chief.
    """
    lines, groups = [], []
    for name, column in zip(names, found.T.tolist(), strict=True):
        holders = collections.defaultdict(list)
        for replica, value in enumerate(column):
            holders[value].append(replica)
        # The sort is stable and the chief's hash comes first, so it wins ties.
        ordered = sorted(holders.items(), key=lambda item: -len(item[1]))
        if len(ordered) > 1:
            texts = (f"{hashing.as_text(value)} on {_join(same, replicas)}" for value, same in ordered)
            lines.append(f"{name}: {', '.join(texts)}")
            groups.append([same for _, same in ordered])
    if len(lines) > _MAX_NAMED:
        lines = [*lines[:_MAX_NAMED], f"and {len(lines) - _MAX_NAMED} more"]
    # Those that are not in the largest group of each name; if these are half of all, those that differ from the chief.
    everyone = set(range(len(replicas)))
    differing = everyone - set.intersection(*(set(first) for first, *_ in groups))
    reference = "most others"
    if 2 * len(differing) >= len(replicas):
        of_chief = [next(set(same) for same in each if 0 in same) for each in groups]
        differing, reference = everyone - set.intersection(*of_chief), "the chief"
    verb = "differs" if len(differing) == 1 else "differ"
    return lines, f"{_join(sorted(differing), replicas)} {verb} from {reference}"


def _join(indices: Sequence[int], replicas: Sequence[str]) -> str:
    return text_lib.list_names([replicas[index] for index in indices], _MAX_NAMED)


def replica_names(cluster: Cluster) -> list[str]:
    """Returns the name of each replica, for messages."""
    local = range(cluster.num_replicas // cluster.num_workers)
    if len(local) == 1:
        return worker_names(cluster)
    return [f"{worker[:-1]}, replica {replica})" for worker in worker_names(cluster) for replica in local]


def worker_names(cluster: Cluster) -> list[str]:
    """Returns the name of each worker, for messages."""
    return [f"worker {rank} (host {worker['host']})" for rank, worker in enumerate(cluster.roster.workers)]
