"""Whether all replicas hold the same state, and all workers read the same examples: hashes, and who differs.

A hash is made on the device that holds the variable. One number a replica travels, in one small collective; only where
it differs, one a variable does, to name which. The hash depends on every bit and its place: a difference in one element
always shows, any other with a probability of about 1 - 2**-60.
"""

import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.data import autograph

# Examples of a split that are read and compared.
_EXAMPLES = 16
# Words that are hashed to one at a time.
_ROW = 1024
# Variables are hashed together until they have so many words: a graph of few operations is soon made, and the copy that
# it takes stays small (32 MB).
_TOGETHER = 1 << 22
_MOST_NAMED = 10


class ReplicaMismatchError(ArithmeticError):
    """Replicas that must hold the same do not."""


def _odd_numbers(salt: int) -> np.ndarray:
    """Pseudo-random odd numbers, int64 [_ROW], by SplitMix64: the same in all versions of all libraries."""
    state = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return ((state ^ (state >> np.uint64(31))) | np.uint64(1)).view(np.int64)


_FIRST, _SECOND = _odd_numbers(1), _odd_numbers(2)


def as_int64_words(value: tf.Tensor) -> tf.Tensor:
    """The bits of `value`, of any shape and dtype, as int64 [n], filled up with zeros; of strings, a hash of each."""
    if value.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(tf.reshape(value, [-1]), 2**63 - 1)
    value = tf.cast(value, tf.uint8) if value.dtype == tf.bool else value
    together = 8 // value.dtype.size
    if together <= 1:
        return tf.reshape(tf.bitcast(value, tf.int64), [-1])
    # Of a known size, and mostly a multiple: two operations instead of a dozen, of which a start traces hundreds.
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
    # Sums modulo 2**64, which any order makes the same. Odd factors keep every bit; the shift between them mixes high
    # bits into low ones, without which two changed signs would cancel.
    rows = tf.reshape(numbers, [-1, _ROW]) * tf.constant(_FIRST)
    rows = tf.bitwise.bitwise_xor(rows, tf.bitwise.right_shift(rows, tf.constant(32, tf.int64)))
    return tf.reduce_sum(rows * tf.constant(_SECOND), axis=1)


@dataclasses.dataclass(slots=True, kw_only=True)
class ReplicaConsistencyCheck:
    """Compares the state of all replicas, and remembers when they last agreed; made by `agreement`."""

    cluster: Cluster
    variables: Mapping[str, Any]
    # Returns int64 [replicas, 1]: a hash of all that a replica holds; the same on every worker.
    hash_all: Callable[[], tf.Tensor]
    # The step after which all were last found to agree; None before.
    step: int | None = None

    def check(self, step: int) -> None:
        """Compares the state after `step`; every worker calls it.

        Raises:
            DisagreementError: names the variables, the workers, each one's hash, and what to do.
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
        since = "They were not compared before" if self.step is None else f"They last agreed after step {self.step}"
        raise ReplicaMismatchError(
            "\n  ".join([f"The replicas do not hold the same state after step {step}:", *lines])
            + f"\n{differing}. {since}. The cause may be a fault of a memory or device, a workdir that is not one for "
            "all, or a function of the config that changes a variable on some replicas alone. To go on, remove the "
            "checkpoints that are newer than the last agreement, and start all workers again; without that host, if "
            "it happens twice."
        )


def make_check(cluster: Cluster, variables: Mapping[str, Any]) -> ReplicaConsistencyCheck:
    """Makes the means to compare `variables`, by name, over all replicas."""
    # What replicas keep apart until it is read, such as a metric's sums, is not meant to be the same.
    apart = tf.VariableSynchronization.ON_READ
    variables = {name: v for name, v in variables.items() if getattr(_variable(v), "synchronization", None) != apart}

    def all_words() -> tf.Tensor:
        groups: list[list[tf.Tensor]] = [[]]
        for variable in variables.values():
            if sum(one.shape[0] for one in groups[-1]) >= _TOGETHER:
                groups.append([])
            groups[-1].append(as_int64_words(_tensor(variable)))
        return hash_words(tf.stack([hash_words(tf.concat(group, axis=0)) for group in groups if group]))[tf.newaxis]

    return ReplicaConsistencyCheck(cluster=cluster, variables=variables, hash_all=cluster.make_all_gather(all_words))


def read_examples(sources: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Reads a few examples of each source, at places that depend on its length alone.

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
    """Compares what the workers read, and where their loops stand; every worker calls it once, before the first step.

    Args:
        read: returns examples by name; see `examples`.
        state: what a checkpoint holds besides the variables: JSON values.

    Raises:
        DisagreementError: names the features, the workers, each one's hash, and what to do.
    """
    if cluster.num_workers == 1:
        return
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).digest()
    hashes = {"where the loop stands": int.from_bytes(digest[:8], "little", signed=True)}
    hashes |= {name: int(hash_words(as_int64_words(value))) for name, value in read().items()}
    # First, whether the names are the same: the vectors must be of one length.
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
            "\n  ".join(["The workers do not read the same:", *lines])
            + f"\n{differing}. {_EXAMPLES} examples of a split are compared. Give all workers the same files."
        )


def describe_mismatch(names: Sequence[str], found: np.ndarray, places: Sequence[str]) -> tuple[list[str], str]:
    """Says in words what differs.

    Args:
        names: of the columns.
        found: int64 [replicas, names], with a difference.
        places: replica -> how it is called.

    Returns:
        (lines, who): a line for each name that differs, with every hash and those that hold it, what most hold first
        (the chief's where no hash is that of most); and who differs from that.
    """
    lines, differing = [], set()
    for name, column in zip(names, found.T.tolist(), strict=True):
        holders = collections.defaultdict(list)
        for replica, value in enumerate(column):
            holders[value].append(replica)
        # Stable, and the chief's hash is the first to be met: it wins a draw.
        ordered = sorted(holders.items(), key=lambda item: -len(item[1]))
        if len(ordered) > 1:
            texts = (f"{value & (2**64 - 1):016x} on {_called(replicas, places)}" for value, replicas in ordered)
            lines.append(f"{name}: {', '.join(texts)}")
            differing |= {replica for _, replicas in ordered[1:] for replica in replicas}
    if len(lines) > _MOST_NAMED:
        lines = [*lines[:_MOST_NAMED], f"and {len(lines) - _MOST_NAMED} more"]
    whom = "most others" if 2 * len(differing) < len(places) else "the chief"
    verb = "differs" if len(differing) == 1 else "differ"
    return lines, f"{_called(sorted(differing), places)} {verb} from {whom}"


def _called(replicas: Sequence[int], places: Sequence[str]) -> str:
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


def _variable(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _tensor(variable: Any) -> tf.Tensor:
    return tf.convert_to_tensor(_variable(variable))
