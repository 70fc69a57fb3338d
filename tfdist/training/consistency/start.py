"""Checks before the first step: all workers read the same examples, as in the saved run, and are at the same step."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.data import autograph, textbook
from tfdist.training.consistency import hashing
from tfdist.training.consistency.replicas import ReplicaMismatchError, describe_mismatch, replica_names
from tfdist.training.state import DataHashes, TrainingState

# Examples of each split that are compared.
_EXAMPLES = 16


def hash_data(sources: Mapping[str, Any], *, own: bool) -> DataHashes:
    """Hashes a few examples of each source, at positions that depend on its length only, and its files.

    Args:
        sources: split -> its `stream.Source` or `textbook.DatasetSource`, or None.
        own: whether the sizes and times of files are looked at, too: one worker is enough.
    """
    common, files = {}, {}
    for split, source in sources.items():
        if source is None:
            continue
        if isinstance(source, textbook.DatasetSource):
            batch = source.first_rows()
        else:
            ids = np.random.RandomState(0).randint(0, len(source), _EXAMPLES, np.int64)
            # As training reads. AutoGraph would convert every function that `read` calls, for about a second.
            read = tf.autograph.experimental.do_not_convert(autograph.convert_read(source))
            batch = next(iter(tf.data.Dataset.from_tensors(ids).map(read)))
        common |= {f"{name!r} of the {split} split": int(hashing.hash_tensor(value)) for name, value in batch.items()}
        common[f"the number of examples of the {split} split"] = len(source)
        if hasattr(source, "fingerprint"):
            common[f"the fingerprint of the {split} split"] = _as_int64(source.fingerprint())
        if own and hasattr(source, "modified"):
            files[f"sizes or times of the files of the {split} split"] = source.modified()
    return DataHashes(common=common, own=files)


def compare_with_saved(state: TrainingState, data: DataHashes, *, allow_changes: bool) -> list[str]:
    """Compares the data with that of the run when it was saved, and notes the new hashes in `state`.

    Returns:
        Warnings for the log.

    Raises:
        ValueError: names what differs, unless `allow_changes`.
    """
    saved, found = state.data, dataclasses.asdict(data)
    state.data = found
    differing = {
        kind: [name for name, value in values.items() if saved.get(kind, {}).get(name, value) != value]
        for kind, values in found.items()
    }
    if differing["common"] and not allow_changes:
        raise ValueError(
            f"The data has changed since the run was saved: {', '.join(differing['common'])}. Restore it, choose "
            "another --workdir, or continue with the new data: --allow_config_changes."
        )
    names = [*differing["common"], *differing["own"]]
    return [f"WARNING: the data has changed since the run was saved: {', '.join(names)}."] if names else []


def check_start(cluster: Cluster, data: DataHashes, state: Mapping[str, Any]) -> None:
    """Compares the data and the training state of all workers; every worker calls it once, before the first step.

    Args:
        state: the training state as JSON values.

    Raises:
        ReplicaMismatchError: names the features, the workers, each one's hash, and what to do.
    """
    if cluster.num_workers == 1:
        return
    hashes = {"the training state": _as_int64(json.dumps(state, sort_keys=True)), **data.common}
    # The names first: the vectors must have the same length.
    names = sorted(hashes)
    shape = tf.constant([_as_int64(json.dumps(names))], tf.int64)
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


def _as_int64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
