"""Replicas or workers that differ: in which variables or data, and what the run does then. Imported only after that."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.config import text as text_lib
from tfdist.training.consistency import hashing, replica_check
from tfdist.training.consistency.replica_check import ReplicaConsistencyCheck, ReplicaMismatchError
from tfdist.training.state import TrainingState

_MAX_NAMED = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Variables whose values differ between replicas."""

    step: int
    # The last step after which all were equal; None: they were not compared before.
    last_equal: int | None
    variables: tuple[str, ...]
    # For the user: the variables, the hashes of the replicas, and when they were last equal.
    text: str


def describe(check: ReplicaConsistencyCheck, step: int) -> Mismatch:
    """Compares the variables one by one. Collective."""
    each = check.cluster.make_all_gather(lambda: replica_check.hash_variables(check.cluster, check.variables))
    names, found = list(check.variables), each().numpy()
    lines, differing = describe_mismatch(names, found, replica_names(check.cluster))
    since = "They were not compared before" if check.step is None else f"They were last equal after step {check.step}"
    text = "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
    return Mismatch(
        step=step,
        last_equal=check.step,
        variables=tuple(name for name, column in zip(names, found.T, strict=True) if (column != column[0]).any()),
        text=f"{text}\n{differing}. {since}.",
    )


def _end(check: ReplicaConsistencyCheck, state: TrainingState, mismatch: Mismatch) -> None:
    raise ReplicaMismatchError(
        f"{mismatch.text} The cause may be faulty memory or a faulty device, a workdir that is "
        "not shared by all workers, or a function of the config that changes a variable on some replicas only. All "
        "checkpoints were compared before they were saved: the same command continues from the newest. If it happens "
        'twice, leave out that host, or set config.consistency.action="copy", which copies the chief\'s state.',
        mismatch,
    )


def _copy(check: ReplicaConsistencyCheck, state: TrainingState, mismatch: Mismatch) -> None:
    limit, text = check.options.limit, mismatch.text
    if state.mismatches >= limit:
        raise ReplicaMismatchError(
            f"{text} The chief's state was copied {limit} times before, which is the maximum "
            "(config.consistency.limit). Restart all workers without the host that differs.",
            mismatch,
        )
    state.mismatches += 1
    for variable in map(checkpoint_format.tf_variable, check.variables.values()):
        variable.assign(tf.identity(check.cluster.strategy.experimental_local_results(variable)[0]))
    check.cluster.broadcast_variables(check.variables.values())
    if not replica_check.all_equal(check.hashes()):
        raise ReplicaMismatchError(f"{text} The chief's state was copied, and the replicas still differ.", mismatch)
    check.warn(
        f"WARNING: {text} All replicas now have the chief's state: copy {state.mismatches} of at most {limit}",
        state.step,
    )


_ACTIONS = {"end": _end, "copy": _copy}


def act(check: ReplicaConsistencyCheck, state: TrainingState) -> None:
    """Does what `config.consistency.action` says, or raises ReplicaMismatchError; every worker calls it."""
    _ACTIONS[check.options.action](check, state, describe(check, state.step))


def different_data(cluster: Cluster, names: Sequence[str], found: np.ndarray, count: int) -> ReplicaMismatchError:
    """Returns the error to raise if the examples of the workers differ.

    Args:
        names, found: as for `describe_mismatch`.
        count: how many examples of each split were compared.
    """
    lines, differing = describe_mismatch(names, found, replica_names(cluster))
    return ReplicaMismatchError(
        "\n  ".join(["The workers do not read the same data:", *lines])
        + f"\n{differing}. {count} examples of each split were compared. Give all workers the same files."
    )


def describe_mismatch(names: Sequence[str], found: np.ndarray, replicas: Sequence[str]) -> tuple[list[str], str]:
    """Describes which hashes differ.

    Args:
        found: int64 [replicas, names], with a difference.

    Returns:
        (lines, who): a line for each name that differs, with every hash and its replicas, the most frequent hash first
        (in a draw, the chief's); and which replicas differ from that.
    """
    lines, differing = [], set()
    for name, column in zip(names, found.T.tolist(), strict=True):
        holders = collections.defaultdict(list)
        for replica, value in enumerate(column):
            holders[value].append(replica)
        # The sort is stable and the chief's hash comes first: it wins a draw.
        ordered = sorted(holders.items(), key=lambda item: -len(item[1]))
        if len(ordered) > 1:
            texts = (f"{hashing.as_text(value)} on {_join(same, replicas)}" for value, same in ordered)
            lines.append(f"{name}: {', '.join(texts)}")
            differing |= {replica for _, same in ordered[1:] for replica in same}
    if len(lines) > _MAX_NAMED:
        lines = [*lines[:_MAX_NAMED], f"and {len(lines) - _MAX_NAMED} more"]
    reference = "most others" if 2 * len(differing) < len(replicas) else "the chief"
    verb = "differs" if len(differing) == 1 else "differ"
    return lines, f"{_join(sorted(differing), replicas)} {verb} from {reference}"


def _join(indices: Sequence[int], replicas: Sequence[str]) -> str:
    return text_lib.list_names([replicas[index] for index in indices], _MAX_NAMED)


def replica_names(cluster: Cluster) -> list[str]:
    """Returns the name of each replica, for messages."""
    local = cluster.num_replicas // cluster.num_workers
    hosts = [f"host {worker.host}" for worker in cluster.roster.workers]
    return [
        f"worker {replica // local} ({hosts[replica // local]}"
        + (f", replica {replica % local})" if local > 1 else ")")
        for replica in range(cluster.num_replicas)
    ]
