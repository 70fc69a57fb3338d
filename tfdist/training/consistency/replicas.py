"""Checks that all replicas hold the same state, and records its hash.

One hash per replica is gathered; only if these differ, one per variable, to name the variables.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.divided import Divided
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices.replicas import Replicas
from tfdist.config import text as text_lib
from tfdist.training.consistency import hashing
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


class ReplicaMismatchError(ArithmeticError):
    """Replicas or workers differ in what must be equal; `mismatch` is None if that is not a variable."""

    exit_code = interruption.EXIT_MISMATCH

    def __init__(self, text: str, mismatch: Mismatch | None = None):
        super().__init__(text)
        self.mismatch = mismatch


@dataclasses.dataclass(slots=True, kw_only=True)
class ReplicaConsistencyCheck:
    """Compares the state of all replicas; made by `make_check`."""

    cluster: Cluster
    variables: Mapping[str, Any]
    # Returns int64 [replicas, 1]: a hash of each replica's state; the same on every worker.
    hash_all: Callable[[], tf.Tensor]
    options: config_lib.Consistency
    # Prints a warning about a step.
    warn: Callable[[str, int], None]
    # Records (step, hash of the state), the same on every worker; None: a single replica does not hash its state.
    record: Callable[[int, int], None] | None
    # The last step after which all replicas were equal; None: not compared yet.
    step: int | None = None

    def check(self, state: TrainingState) -> None:
        """Compares the variables after `state.step`, or raises ReplicaMismatchError; every worker calls it."""
        if self.cluster.num_replicas > 1 or self.record is not None:
            found = self._hashes()
            if not _all_equal(found):
                _ACTIONS[self.options.action](self, state, self._describe(state.step))
                found = self._hashes()
            if self.record is not None:
                self.record(state.step, int(found[0]))
        self.step = state.step

    def _hashes(self) -> np.ndarray:
        """Returns the hash of each replica's state: int64 [replicas]."""
        return self.hash_all().numpy()[:, 0]

    def _describe(self, step: int) -> Mismatch:
        each = self.cluster.make_all_gather(lambda: hash_variables(self.cluster, self.variables))
        names, found = list(self.variables), each().numpy()
        lines, differing = describe_mismatch(names, found, replica_names(self.cluster))
        since = "They were not compared before" if self.step is None else f"They were last equal after step {self.step}"
        text = "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
        return Mismatch(
            step=step,
            last_equal=self.step,
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
    if not _all_equal(check._hashes()):
        raise ReplicaMismatchError(f"{text} The chief's state was copied, and the replicas still differ.", mismatch)
    check.warn(
        f"WARNING: {text} All replicas now have the chief's state: copy {state.mismatches} of at most {limit}",
        state.step,
    )


_ACTIONS = {"end": _end, "copy": _copy}


def make_check(
    cluster: Cluster,
    variables: Mapping[str, Any],
    options: config_lib.Consistency,
    warn: Callable[[str, int], None],
    record: Callable[[int, int], None] | None = None,
) -> ReplicaConsistencyCheck:
    """Makes the check of `variables`, by name, over all replicas.

    Args:
        warn: prints a warning about a step.
        record: records (step, hash of the state); None: nothing is recorded.
    """
    hashed, compared = _without_sums(variables), select_comparable(variables)

    def hash_state() -> tf.Tensor:
        return hashing.combine(hash_variables(cluster, compared), cluster.device_type)[tf.newaxis]

    # On CPUs without a graph: tracing one for hundreds of variables takes seconds.
    eager = cluster.device_type == "CPU" or len(hashed) > len(compared)
    return ReplicaConsistencyCheck(
        cluster=cluster,
        variables=compared,
        hash_all=functools.partial(_hash_all, cluster, hashed) if eager else cluster.make_all_gather(hash_state),
        options=options,
        warn=warn,
        record=record,
    )


def _hash_all(cluster: Cluster, variables: Mapping[str, Any]) -> tf.Tensor:
    """Returns the hash of each replica's state: int64 [replicas, 1]. Collective."""
    local, found = cluster.num_replicas // cluster.num_workers, []
    for variable in map(checkpoint_format.tf_variable, variables.values()):
        # Of divided ones the whole, one after another.
        divided = isinstance(variable, Divided)
        copies = [variable.whole()] if divided else cluster.strategy.experimental_local_results(variable)
        hashes = hashing.hash_each([tf.convert_to_tensor(one) for one in copies], cluster.device_type)
        found.append(hashes if len(copies) == local else tf.repeat(hashes[:1], local))
    states = [hashing.combine(row, cluster.device_type).numpy() for row in tf.stack(found, axis=1)]
    return tf.reshape(cluster.all_gather(np.array(states, np.int64)), [-1, 1])


def select_comparable(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables that are equal on all replicas: no sums, and none that are split between replicas."""
    return {name: one for name, one in _without_sums(variables).items() if not isinstance(one, Divided)}


def _without_sums(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables without those that are reduced when read, such as a metric's sums: those differ."""
    apart = tf.VariableSynchronization.ON_READ
    return {
        name: variable
        for name, variable in variables.items()
        if getattr(checkpoint_format.tf_variable(variable), "synchronization", None) != apart
    }


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


def _all_equal(hashes: np.ndarray) -> bool:
    return bool((hashes == hashes[0]).all())


def hash_variables(cluster: Replicas, variables: Mapping[str, Any]) -> tf.Tensor:
    """Returns the hash of each variable on the calling replica: int64 [variables]."""
    values = [tf.convert_to_tensor(checkpoint_format.tf_variable(variable)) for variable in variables.values()]
    return hashing.hash_each(values, cluster.device_type)
