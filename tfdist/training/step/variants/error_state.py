"""The errors of PowerSGD in checkpoints: of each replica for as many replicas, and their sum for another number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
        # Compiled once, at the first save.
        self._gathers = [
            (pieces, cluster.make_all_gather(_words_of([(self._errors[name], part) for name, part in pieces])))
            for pieces in _divide({name: error.shape.num_elements() for name, error in self._errors.items()})
        ]

    def variables(self) -> list[Any]:
        return list(self._errors.values())

    def gather(self) -> dict[str, np.ndarray]:
        """Returns on the chief the errors of all replicas, float32 [replicas, ...] each. Collective."""
        found: dict[str, np.ndarray] = {}
        for pieces, gather in self._gathers:
            words = gather()
            if not self._cluster.is_chief:
                continue
            numbers, first = words.numpy().view(np.float32), 0
            for name, part in pieces:
                if name not in found:
                    found[name] = np.empty([len(numbers), self._errors[name].shape.num_elements()], np.float32)
                found[name][:, part] = numbers[:, first : first + part.stop - part.start]
                first += part.stop - part.start
        return {name: numbers.reshape(-1, *self._errors[name].shape) for name, numbers in found.items()}

    def assign(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assigns errors, float32 [replicas, ...] each by name; those that are missing in `arrays` become zeros.

        If they are those of another number of replicas, the first replica gets their sum and the others get zeros: all
        steps depend on the sum only.
        """
        for name in self._errors:
            self._assign(name, arrays.get(name))

    def _assign(self, name: str, found: np.ndarray | None) -> None:
        first = replica_shard(self._cluster).first_replica
        for replica, variable in enumerate(self._cluster.local_values(self._errors[name].value), first):
            value = np.zeros(variable.shape, np.float32)
            if found is not None and len(found) == self._cluster.num_replicas:
                value = found[replica]
            elif found is not None and replica == 0:
                value = found.sum(axis=0, dtype=np.float64).astype(np.float32)
            variable.assign(value)

    def restore(self, saved: Saved | None) -> None:
        names = [] if saved is None else [name for name in self._errors if name in saved.arrays]
        for name in self._errors.keys() - set(names):
            self._assign(name, None)
        for name, found in restore.read(self._cluster, saved, names) if names else ():
            self._assign(name, found)


def _divide(sizes: Mapping[str, int]) -> Iterator[list[tuple[str, slice]]]:
    """Divides arrays of float32, by their numbers of values, into lists of parts of at most `_TOGETHER` bytes."""
    most = _TOGETHER // 4
    group: list[tuple[str, slice]] = []
    room = most
    for name, size in sizes.items():
        first = 0
        while first < size:
            last = min(size, first + room)
            group.append((name, slice(first, last)))
            room -= last - first
            first = last
            if not room:
                yield group
                group, room = [], most
    if group:
        yield group


def _words_of(parts: Sequence[tuple[keras.Variable, slice]]) -> Callable[[], tf.Tensor]:
    """Returns a function that returns the bits of parts of a replica's errors: int64 [n], padded with zeros."""
    return lambda: hashing.as_int64_words(
        tf.concat([tf.reshape(error.value, [-1])[part] for error, part in parts], axis=0)
    )
