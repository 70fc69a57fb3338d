"""Compares the state of all replicas by a hash of each; only if these differ, one per variable, to name them."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices.replicas import Replicas
from tfdist.training.consistency import hashing, mismatch


class ReplicaMismatchError(ArithmeticError):
    """Replicas or workers differ in what must be equal.

    Args:
        text: for the user.
        step, equal_at: the step of the comparison, and the last one after which all were equal; None: there was none.
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
    # Returns int64 [replicas, 1]: a hash of each replica's state; the same on every worker.
    _hash_all: Callable[[], tf.Tensor] = dataclasses.field(init=False)

    def __post_init__(self):
        self.variables = select_comparable(self.variables)
        # On CPUs without a graph: tracing one for hundreds of variables takes seconds.
        if self.cluster.device_type == "CPU":
            self._hash_all = functools.partial(_hash_all, self.cluster, self.variables)
        else:
            self._hash_all = self.cluster.make_all_gather(self._hash_state)

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
        return self._hash_all().numpy()[:, 0]

    @property
    def hash_name(self) -> str:
        """The name of the hash function."""
        return hashing.HASH_NAMES[self.cluster.device_type]

    def _hash_state(self) -> tf.Tensor:
        return hashing.combine(hash_variables(self.cluster, self.variables), self.cluster.device_type)[tf.newaxis]


def _replicas_differ(comparison: Comparison, step: int) -> ReplicaMismatchError:
    """Compares the variables one by one, and returns the error to raise. Collective."""
    cluster, variables, equal_at = comparison.cluster, comparison.variables, comparison.equal_at
    found = cluster.make_all_gather(lambda: hash_variables(cluster, variables))().numpy()
    lines, differing = mismatch.describe_mismatch(list(variables), found, mismatch.replica_names(cluster))
    since = "They were not compared before" if equal_at is None else f"They were last equal after step {equal_at}"
    text = "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
    return ReplicaMismatchError(
        f"{text}\n{differing}. {since}. The cause may be faulty memory or a faulty device, a workdir that is not "
        "shared by all workers, or a function of the config that changes a variable on some replicas only. All "
        "checkpoints were compared before they were saved: the same command continues from the newest. If it happens "
        "twice, leave out that host.",
        step,
        equal_at,
        tuple(name for name, column in zip(variables, found.T, strict=True) if (column != column[0]).any()),
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


def hash_variables(cluster: Replicas, variables: Mapping[str, Any]) -> tf.Tensor:
    """Returns the hash of each variable on the calling replica: int64 [variables]."""
    values = [tf.convert_to_tensor(checkpoint_format.tf_variable(variable)) for variable in variables.values()]
    return hashing.hash_each(values, cluster.device_type)
