"""Checks that all replicas hold the same state, and that all workers read the same examples.

A hash is computed on the device that holds the variable. One number per replica is gathered; only if these differ, one
per variable, to name the variables. The hash depends on every bit and its position: a difference in one element is
always found, any other with a probability of about 1 - 2**-60.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.data import autograph

# Examples of each split that are compared.
_EXAMPLES = 16
# Words that one round hashes to one.
_ROW = 1024
# Words of variables that are hashed together (32 MB): fewer operations to trace, and a small copy.
_TOGETHER = 1 << 22
_MOST_NAMED = 10


class ReplicaMismatchError(ArithmeticError):
    """Replicas or workers differ in what must be equal."""


def _odd_numbers(salt: int) -> np.ndarray:
    """Returns pseudo-random odd numbers, int64 [_ROW], by SplitMix64: independent of the versions of libraries."""
    state = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) | np.uint64(1)).view(np.int64)


_FIRST, _SECOND = _odd_numbers(1), _odd_numbers(2)


def as_int64_words(value: tf.Tensor) -> tf.Tensor:
    """Returns the bits of `value`, of any shape and dtype, as int64 [n], padded with zeros; strings are hashed."""
    if value.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(tf.reshape(value, [-1]), 2**63 - 1)
    value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
    together = 8 // value.dtype.size
    if together <= 1:
        return tf.reshape(tf.bitcast(value, tf.int64), [-1])
    # If the size is known, and a multiple: two operations instead of a dozen, for hundreds of variables.
    size = value.shape.num_elements()
    missing = -(tf.size(value) if size is None else size) % together
    if size is None or missing:
        value = tf.pad(tf.reshape(value, [-1]), [[0, missing]])
    return tf.bitcast(tf.reshape(value, [-1, together]), tf.int64)


@tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)])
def hash_words(numbers: tf.Tensor) -> tf.Tensor:
    """Hashes int64 [n] to int64 []."""

    def shorten(numbers: tf.Tensor) -> list[tf.Tensor]:
        full = tf.size(numbers) // _ROW * _ROW
        rest = tf.pad(numbers[full:], [[0, -tf.size(numbers) % _ROW]])
        return [tf.concat([_rows(numbers[:full]), _rows(rest)], axis=0)]

    invariants = [tf.TensorShape([None])]
    return tf.reduce_sum(tf.while_loop(lambda n: tf.size(n) > 1, shorten, [numbers], shape_invariants=invariants)[0])


def _rows(numbers: tf.Tensor) -> tf.Tensor:
    # Sums modulo 2**64 do not depend on the order. Odd factors keep every bit. The shift mixes high bits into low ones:
    # otherwise two changed signs would cancel.
    rows = tf.reshape(numbers, [-1, _ROW]) * tf.constant(_FIRST)
    rows = tf.bitwise.bitwise_xor(rows, tf.bitwise.right_shift(rows, tf.constant(32, tf.int64)))
    return tf.reduce_sum(rows * tf.constant(_SECOND), axis=1)


@dataclasses.dataclass(slots=True, kw_only=True)
class ReplicaConsistencyCheck:
    """Compares the state of all replicas; made by `make_check`."""

    cluster: Cluster
    variables: Mapping[str, Any]
    # Returns int64 [replicas, 1]: a hash of each replica's state; the same on every worker.
    hash_all: Callable[[], tf.Tensor]
    # The last step after which all replicas were equal; None: not compared yet.
    step: int | None = None

    def check(self, step: int) -> None:
        """Compares the state after `step`; every worker calls it.

        Raises:
            ReplicaMismatchError: names the variables, the workers, each one's hash, and what to do.
        """
        if self.cluster.num_replicas == 1:
            return
        found = self.hash_all().numpy()
        if (found == found[0]).all():
            self.step = step
            return
        each = self.cluster.make_all_gather(
            lambda: tf.stack([hash_words(as_int64_words(_tensor(v))) for v in self.variables.values()])
        )
        lines, differing = describe_mismatch(list(self.variables), each().numpy(), _places(self.cluster))
        since = "They were not compared before" if self.step is None else f"They were last equal after step {self.step}"
        raise ReplicaMismatchError(
            "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
            + f"\n{differing}. {since}. The cause may be faulty memory or a faulty device, a workdir that is "
            "not shared by all workers, or a function of the config that changes a variable on some replicas only. To "
            "continue, remove the checkpoints newer than the last equal step and restart all workers; if it happens "
            "twice, without that host."
        )


def make_check(cluster: Cluster, variables: Mapping[str, Any]) -> ReplicaConsistencyCheck:
    """Makes the check of `variables`, by name, over all replicas."""
    # Variables that are reduced when read, such as a metric's sums, differ between replicas.
    apart = tf.VariableSynchronization.ON_READ
    variables = {
        name: v
        for name, v in variables.items()
        if getattr(checkpoint_format.tf_variable(v), "synchronization", None) != apart
    }

    def all_words() -> tf.Tensor:
        groups: list[list[tf.Tensor]] = [[]]
        for variable in variables.values():
            if sum(one.shape[0] for one in groups[-1]) >= _TOGETHER:
                groups.append([])
            groups[-1].append(as_int64_words(_tensor(variable)))
        return hash_words(tf.stack([hash_words(tf.concat(group, axis=0)) for group in groups if group]))[tf.newaxis]

    return ReplicaConsistencyCheck(cluster=cluster, variables=variables, hash_all=cluster.make_all_gather(all_words))


def read_examples(sources: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Reads a few examples of each source, at positions that depend on its length only.

    Args:
        sources: split -> its `stream.Source`, or None.

    Returns:
        {"'image' of the train split": [examples, ...], ...}
    """
    found = {}
    for split, source in sources.items():
        if source is not None:
            ids = np.random.RandomState(0).randint(0, len(source), _EXAMPLES, np.int64)
            # As training reads. AutoGraph would convert every function that `read` calls, for about a second.
            read = tf.autograph.experimental.do_not_convert(autograph.convert(source.read))
            batch = next(iter(tf.data.Dataset.from_tensors(ids).map(read)))
            found |= {f"{name!r} of the {split} split": value for name, value in batch.items()}
    return found


def check_start(cluster: Cluster, read: Callable[[], Mapping[str, tf.Tensor]], state: Mapping[str, Any]) -> None:
    """Compares the data and the training state of all workers; every worker calls it once, before the first step.

    Args:
        read: returns examples by name; see `read_examples`.
        state: the training state as JSON values.

    Raises:
        ReplicaMismatchError: names the features, the workers, each one's hash, and what to do.
    """
    if cluster.num_workers == 1:
        return
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()
    hashes = {"the training state": int.from_bytes(digest[:8], "little", signed=True)}
    hashes |= {name: int(hash_words(as_int64_words(value))) for name, value in read().items()}
    # The names first: the vectors must have the same length.
    names = sorted(hashes)
    key = hashlib.sha256(json.dumps(names).encode()).digest()
    shape = tf.constant([int.from_bytes(key[:8], "little", signed=True)], tf.int64)
    found = cluster.make_all_gather(lambda: shape)().numpy()
    if (found == found[0]).all():
        vector = tf.constant([hashes[name] for name in names], tf.int64)
        found = cluster.make_all_gather(lambda: vector)().numpy()
    else:
        names = [f"features (here: {', '.join(names)})"]
    if not (found == found[0]).all():
        lines, differing = describe_mismatch(names, found, _places(cluster))
        raise ReplicaMismatchError(
            "\n  ".join(["The workers do not read the same data:", *lines])
            + f"\n{differing}. {_EXAMPLES} examples of each split were compared. Give all workers the same files."
        )


def describe_mismatch(names: Sequence[str], found: np.ndarray, places: Sequence[str]) -> tuple[list[str], str]:
    """Describes which hashes differ.

    Args:
        names: the names of the columns.
        found: int64 [replicas, names], with a difference.
        places: the name of each replica.

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
            texts = (f"{value & (2**64 - 1):016x} on {_join(replicas, places)}" for value, replicas in ordered)
            lines.append(f"{name}: {', '.join(texts)}")
            differing |= {replica for _, replicas in ordered[1:] for replica in replicas}
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more"]
    reference = "most others" if 2 * len(differing) < len(places) else "the chief"
    verb = "differs" if len(differing) == 1 else "differ"
    return lines, f"{_join(sorted(differing), places)} {verb} from {reference}"


def _join(replicas: Sequence[int], places: Sequence[str]) -> str:
    names = [places[replica] for replica in replicas]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _places(cluster: Cluster) -> list[str]:
    local = cluster.num_replicas // cluster.num_workers
    # A line of the roster begins "worker 1 of 2: host n2, pid 123, ...".
    hosts = [line.partition(": ")[2].partition(",")[0] for line in cluster.roster]
    return [
        f"worker {replica // local} ({hosts[replica // local]}"
        + (f", replica {replica % local})" if local > 1 else ")")
        for replica in range(cluster.num_replicas)
    ]


def _tensor(variable: Any) -> tf.Tensor:
    return tf.convert_to_tensor(checkpoint_format.tf_variable(variable))
