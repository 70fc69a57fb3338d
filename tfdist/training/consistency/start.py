"""Checks before the first step that all workers read the same examples and are at the same step."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.data import autograph, textbook
from tfdist.training.consistency import hashing
from tfdist.training.consistency.replicas import ReplicaMismatchError, describe_mismatch, replica_names

# Examples of each split that are compared.
_EXAMPLES = 16


def read_examples(sources: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Reads a few examples of each source, at positions that depend on its length only.

    Args:
        sources: split -> its `stream.Source` or `textbook.DatasetSource`, or None.

    Returns:
        {"'image' of the train split": [examples, ...], ...}
    """
    found = {}
    for split, source in sources.items():
        if isinstance(source, textbook.DatasetSource):
            batch = source.first_rows()
        elif source is not None:
            ids = np.random.RandomState(0).randint(0, len(source), _EXAMPLES, np.int64)
            # As training reads. AutoGraph would convert every function that `read` calls, for about a second.
            read = tf.autograph.experimental.do_not_convert(autograph.convert_read(source))
            batch = next(iter(tf.data.Dataset.from_tensors(ids).map(read)))
        if source is not None:
            found |= {f"{name!r} of the {split} split": value for name, value in batch.items()}
            found[f"the number of examples of the {split} split"] = tf.constant(len(source), tf.int64)
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
    hashes |= {name: int(hashing.hash_tensor(value)) for name, value in read().items()}
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
        lines, differing = describe_mismatch(names, found, replica_names(cluster))
        raise ReplicaMismatchError(
            "\n  ".join(["The workers do not read the same data:", *lines])
            + f"\n{differing}. {_EXAMPLES} examples of each split were compared. Give all workers the same files."
        )
