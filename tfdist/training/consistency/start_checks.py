"""Checks before the first step: all workers have the same state and examples, which are those of the saved run."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import numerics
from tfdist.cluster.cluster import Cluster
from tfdist.data.feed import Examples
from tfdist.training.consistency import hashing, mismatch
from tfdist.training.consistency.comparison import ReplicaMismatchError
from tfdist.training.state import TrainingState

# Examples of each split that are compared.
EXAMPLES = 16


def hash_examples(examples: Examples) -> dict[str, dict[str, Any]]:
    """Hashes a few examples, and the facts about the data.

    Returns:
        "columns" and "common": name -> int, which must be equal on all workers and after a resume; "own": the facts of
        this worker.
    """
    columns = dict(zip(examples.columns, hashing.hash_each([*examples.columns.values()]).numpy().tolist(), strict=True))
    common = {name: fact if isinstance(fact, int) else _as_int64(fact) for name, fact in examples.facts.items()}
    return {"columns": columns, "common": common, "own": dict(examples.own)}


def compare_with_saved(state: TrainingState, data: dict[str, dict[str, Any]], *, allow_changes: bool) -> list[str]:
    """Compares the data with the saved run's, stores the new hashes in `state`, and returns warnings.

    Raises:
        ValueError: names what differs, unless `allow_changes`.
    """
    saved, state.data = state.data, data
    differing = {
        kind: [name for name, value in values.items() if saved.get(kind, {}).get(name, value) != value]
        for kind, values in data.items()
    }
    if (changed := [*differing["columns"], *differing["common"]]) and not allow_changes:
        raise ValueError(
            f"The data has changed since the run was saved: {', '.join(changed)}. Restore it, choose "
            "another --workdir, or continue with the new data: --allow_data_changes."
        )
    names = [*changed, *differing["own"]]
    return [f"WARNING: the data has changed since the run was saved: {', '.join(names)}."] if names else []


def check_start(cluster: Cluster, data: Mapping[str, int], state: Mapping[str, Any]) -> None:
    """Compares the data and the training state of all workers; every worker calls it once, before the first step.

    Args:
        data: "columns" and "common" of the result of `hash_examples`.
        state: the training state as JSON values.

    Raises:
        ReplicaMismatchError: names the features, the workers, each one's hash, and what to do.
        ValueError: this worker has other code than the chief; names the files.
    """
    if cluster.num_workers == 1:
        return
    numerics.check_code(cluster)
    hashes = {"the training state": _as_int64(json.dumps(state, sort_keys=True)), **data}
    # The names first, because the vectors must have the same length.
    names = sorted(hashes)
    found = cluster.all_gather([_as_int64(json.dumps(names))])
    if (found == found[0]).all():
        found = cluster.all_gather([hashes[name] for name in names])
    else:
        names = [f"features (here: {', '.join(names)})"]
    if not (found == found[0]).all():
        lines, differing = mismatch.describe_mismatch(names, found, mismatch.worker_names(cluster))
        raise ReplicaMismatchError(
            "\n  ".join(["The workers differ in their data or training state:", *lines])
            + f"\n{differing}. {EXAMPLES} examples of each split were compared. Give all workers the same files."
        )


def _as_int64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
