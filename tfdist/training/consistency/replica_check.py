"""Checks that all replicas hold the same state, and records its hash.

One hash per replica is gathered; only if these differ, one per variable, to name the variables: mismatch.py.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices.replicas import Replicas
from tfdist.training.consistency import hashing
from tfdist.training.state import TrainingState


class ReplicaMismatchError(ArithmeticError):
    """Replicas or workers differ in what must be equal: `mismatch`, a `mismatch.Mismatch`; None: not a variable."""

    exit_code = interruption.EXIT_MISMATCH

    def __init__(self, text: str, mismatch: Any = None):
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
    # Does what `config.consistency.action` says, or raises ReplicaMismatchError; see mismatch.py.
    on_mismatch: Callable[["ReplicaConsistencyCheck", TrainingState], None]
    # The last step after which all replicas were equal; None: not compared yet.
    step: int | None = None

    def check(self, state: TrainingState) -> None:
        """Compares the variables after `state.step`, or raises ReplicaMismatchError; every worker calls it."""
        if self.cluster.num_replicas > 1 or self.record is not None:
            found = self.hashes()
            if not all_equal(found):
                self.on_mismatch(self, state)
                found = self.hashes()
            if self.record is not None:
                self.record(state.step, int(found[0]))
        self.step = state.step

    def hashes(self) -> np.ndarray:
        """Returns the hash of each replica's state: int64 [replicas]."""
        return self.hash_all().numpy()[:, 0]


def make_check(
    cluster: Cluster,
    variables: Mapping[str, Any],
    options: config_lib.Consistency,
    warn: Callable[[str, int], None],
    on_mismatch: Callable[[ReplicaConsistencyCheck, TrainingState], None],
    record: Callable[[int, int], None] | None = None,
) -> ReplicaConsistencyCheck:
    """Makes the check of `variables`, by name, over all replicas.

    Args:
        warn: prints a warning about a step.
        on_mismatch: called if the replicas differ; it makes them equal or raises.
        record: records (step, hash of the state); None: nothing is recorded.
    """
    variables = select_comparable(variables)

    def hash_state() -> tf.Tensor:
        return hashing.combine(hash_variables(cluster, variables), cluster.device_type)[tf.newaxis]

    # On CPUs without a graph: tracing one for hundreds of variables takes seconds.
    eager = cluster.device_type == "CPU"
    return ReplicaConsistencyCheck(
        cluster=cluster,
        variables=variables,
        hash_all=functools.partial(_hash_all, cluster, variables) if eager else cluster.make_all_gather(hash_state),
        options=options,
        warn=warn,
        on_mismatch=on_mismatch,
        record=record,
    )


def _hash_all(cluster: Cluster, variables: Mapping[str, Any]) -> tf.Tensor:
    """Returns the hash of each replica's state: int64 [replicas, 1]. Collective."""
    values = map(checkpoint_format.tf_variable, variables.values())
    copies = [[*map(tf.convert_to_tensor, cluster.strategy.experimental_local_results(one))] for one in values]
    hashes = iter(hashing.hash_each([*itertools.chain(*copies)], cluster.device_type).numpy())
    local = cluster.num_replicas // cluster.num_workers
    # A variable has a copy for each replica of this worker, or one for all.
    found = [np.broadcast_to([*itertools.islice(hashes, len(each))], [local]) for each in copies]
    rows = np.stack(found, axis=1)
    states = [hashing.combine(tf.constant(row), cluster.device_type).numpy() for row in rows]
    return tf.reshape(cluster.all_gather(np.array(states, np.int64)), [-1, 1])


def select_comparable(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables without those that are reduced when read, such as a metric's sums: those differ."""
    apart = tf.VariableSynchronization.ON_READ
    return {
        name: variable
        for name, variable in variables.items()
        if getattr(checkpoint_format.tf_variable(variable), "synchronization", None) != apart
    }


def all_equal(hashes: np.ndarray) -> bool:
    """Returns whether the hashes of all replicas are equal."""
    return bool((hashes == hashes[0]).all())


def hash_variables(cluster: Replicas, variables: Mapping[str, Any]) -> tf.Tensor:
    """Returns the hash of each variable on the calling replica: int64 [variables]."""
    values = [tf.convert_to_tensor(checkpoint_format.tf_variable(variable)) for variable in variables.values()]
    return hashing.hash_each(values, cluster.device_type)
