"""Compares one hash per replica. Only if these differ, compares one hash per variable, to name the variables."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.training.consistency import hashing, mismatch


class ReplicaMismatchError(ArithmeticError):
    """Replicas or workers differ in what must be equal.

    Args:
        text: for the user.
        step, equal_at: the step of the comparison, and the last step after which all were equal; None: none.
        variables: those that differ.
    """

    exit_code = interruption.EXIT_MISMATCH

    def __init__(self, text: str, step: int = 0, equal_at: int | None = None, variables: tuple[str, ...] = ()):
        super().__init__(text)
        self.step, self.equal_at, self.variables = step, equal_at, variables


@dataclasses.dataclass(slots=True, kw_only=True)
class Comparison:
    """Compares `variables`, by name, over all replicas of `cluster`."""

    cluster: Cluster
    variables: Mapping[str, Any]
    # The last step after which all replicas were equal; None: not compared yet.
    equal_at: int | None = None

    def __post_init__(self):
        self.variables = select_comparable(self.variables)

    def check(self, step: int) -> str:
        """Compares the replicas after `step`, and returns the hash of the state; every worker calls it.

        Raises:
            ReplicaMismatchError: names the variables, the hashes of the replicas, and when they were last equal.
        """
        found = self.hashes()
        if not (found == found[0]).all():
            raise _replicas_differ(self, step)
        self.equal_at = step
        return hashing.as_text(int(found[0]))

    def hashes(self) -> np.ndarray:
        """Returns the hash of each replica's state: int64 [replicas]. Collective."""
        states = [int(hashing.combine(tf.constant(row))) for row in _hash_local(self.cluster, self.variables)]
        return self.cluster.all_gather(states).reshape(-1)


def _replicas_differ(comparison: Comparison, step: int) -> ReplicaMismatchError:
    """Compares the variables one by one, and returns the error to raise. Collective."""
    cluster, variables, equal_at = comparison.cluster, comparison.variables, comparison.equal_at
    found = cluster.all_gather(_hash_local(cluster, variables).reshape(-1)).reshape(cluster.num_replicas, -1)
    lines, differing = mismatch.describe_mismatch(list(variables), found, mismatch.replica_names(cluster))
    since = f"They were last equal after step {equal_at}"
    if equal_at is None:
        since = (
            "They were not compared before. If an error ended an earlier training of this model within a step, for "
            "example because the data ended early, build the model again"
        )
    text = "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
    return ReplicaMismatchError(
        f"{text}\n{differing}. {since}. The cause may be faulty memory or a faulty device, a workdir that is not "
        "shared by all workers, or a function of the config that changes a variable on some replicas only. The "
        "replicas were equal before each save: the same command continues from the newest checkpoint. If it happens "
        "twice, exclude that host.",
        step,
        equal_at,
        tuple(name for name, column in zip(variables, found.T, strict=True) if (column != column[0]).any()),
    )


def _hash_local(cluster: Cluster, variables: Mapping[str, Any]) -> np.ndarray:
    """Returns the hash of each variable on each replica of this worker: int64 [replicas, variables].

    Runs eagerly, because tracing a graph for hundreds of variables takes seconds.
    """
    values = map(checkpoint_format.tf_variable, variables.values())
    copies = [[*map(tf.convert_to_tensor, cluster.strategy.experimental_local_results(one))] for one in values]
    hashes = iter(hashing.hash_each([*itertools.chain(*copies)]).numpy())
    local = cluster.num_replicas // cluster.num_workers
    # A variable has a copy for each replica of this worker, or one for all.
    found = [np.broadcast_to([*itertools.islice(hashes, len(each))], [local]) for each in copies]
    return np.stack(found, axis=1)


def select_comparable(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the variables without those that are reduced when read, such as a metric's sums: their copies differ."""
    reduced_when_read = tf.VariableSynchronization.ON_READ
    return {
        name: variable
        for name, variable in variables.items()
        if getattr(checkpoint_format.tf_variable(variable), "synchronization", None) != reduced_when_read
    }
