"""The errors of PowerSGD in checkpoints: of each replica for as many replicas, and their sum for another number."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.checkpoint.format import Saved
from tfdist.cluster.cluster import Cluster
from tfdist.training.consistency import hashing
from tfdist.training.consistency.replica_state import ReplicaState
from tfdist.training.run import replica_shard

# Bytes of the errors of a replica that are gathered together.
_TOGETHER = 2**25


class ErrorState(ReplicaState):
    """The errors, float32, by the names that they have in checkpoints after `checkpoint_format.REPLICAS`."""

    def __init__(self, *, cluster: Cluster, errors: Mapping[str, keras.Variable]):
        self._cluster = cluster
        self._errors = {f"{checkpoint_format.REPLICAS}{name}": error for name, error in errors.items()}
        groups = [list(group) for group in _groups(self._errors)]
        # Compiled once, at the first save.
        self._gathers = [(group, cluster.make_all_gather(_words_of(group.values()))) for group in map(dict, groups)]

    def variables(self) -> list[Any]:
        """Returns the variables."""
        return list(self._errors.values())

    def gather(self) -> dict[str, np.ndarray]:
        """Returns on the chief the errors of all replicas, float32 [replicas, ...] each. Collective."""
        found: dict[str, np.ndarray] = {}
        for group, gather in self._gathers:
            words = gather()
            if not self._cluster.is_chief:
                continue
            numbers, first = words.numpy().view(np.float32), 0
            for name, error in group.items():
                last = first + error.shape.num_elements()
                found[name] = numbers[:, first:last].reshape(-1, *error.shape)
                first = last
        return found

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assigns errors, float32 [replicas, ...] each by name; those that are missing in `arrays` become zeros.

        If they are those of another number of replicas, the first replica gets their sum and the others get zeros: all
        steps depend on the sum only.
        """
        shard = replica_shard(self._cluster)
        for name, error in self._errors.items():
            rows = np.zeros([self._cluster.num_replicas, *error.shape], np.float32)
            found = arrays.get(name)
            if found is not None and len(found) == len(rows):
                rows = found
            elif found is not None:
                rows[0] = found.sum(axis=0, dtype=np.float64)
            for place, variable in enumerate(self._cluster.local_values(error.value)):
                variable.assign(rows[shard.first_replica + place])

    def restore(self, saved: Saved | None) -> None:
        """Restores the errors as `assign` does. Collective."""
        names = [] if saved is None else [name for name in self._errors if name in saved.arrays]
        self.assign(dict(restore.read(self._cluster, saved, names)) if names else {})


def _groups(errors: Mapping[str, keras.Variable]) -> Iterator[list[tuple[str, keras.Variable]]]:
    group: list[tuple[str, keras.Variable]] = []
    for name, error in errors.items():
        if group and 4 * sum(one.shape.num_elements() for _, one in (*group, (name, error))) > _TOGETHER:
            yield group
            group = []
        group.append((name, error))
    if group:
        yield group


def _words_of(errors):
    """Returns a function that returns the bits of all errors of a replica: int64 [n], padded with zeros."""
    errors = list(errors)
    return lambda: hashing.as_int64_words(tf.concat([tf.reshape(one.value, [-1]) for one in errors], axis=0))
