"""Compares the workers' data before a run: a message names the column, and whether the size or the content differs.

A column is compared by a hash of its values or, for floats, by sums: processors round differently, so floats of two
workers may differ in their last bits.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tfdist.cluster.cluster import Cluster
from tfdist.data.feed import Examples
from tfdist.keras_fit.adapters.base import DataAdapter, RandomAccess

# Number of examples, evenly spaced, that are compared with those of other workers.
_EXAMPLES = 16
# About how many values of an array are hashed or summed, and the relative tolerance of the sums.
_VALUES, _TOLERANCE = 2**16, 1e-4


def check_same_data(cluster: Cluster, adapter: DataAdapter) -> None:
    """Compares the size of the data, and values of each column, with the chief's. Collective.

    Raises:
        ValueError: this worker has other data; names the column, and whether its size or its content differs. Or the
            workers may read the data in different orders.
    """
    if cluster.num_workers == 1:
        return
    if adapter.order_unknown:
        raise ValueError(adapter.order_unknown)
    size = f"{adapter.steps} steps of {adapter.batch_size} examples"
    if isinstance(adapter, RandomAccess):
        size = f"{adapter.num_examples} examples, {size}"
    columns = adapter.sample(_EXAMPLES).items()
    here = {name: (f"{values.dtype} {list(values.shape)}", summary([values])) for name, values in columns}
    size_there, there = json.loads(cluster.all_gather_text(json.dumps([size, here]))[0])
    problems = [] if size == size_there else [f"{size} here, {size_there} there"]
    if not problems:  # Which rows are compared depends on the size.
        problems = [text for name in {**here, **there} if (text := _difference(name, here, there))]
    if problems:
        raise ValueError(
            f"Worker {cluster.rank} has other data than worker 0: {'; '.join(problems)}. All workers must pass the "
            "same data in the same order; each takes its shard. Seed the shuffling: call keras.utils.set_random_seed "
            "before the dataset is made."
        )


def examples(adapter: DataAdapter, count: int) -> Examples:
    """Hashes the size of arrays, and `count` rows, to notice if a run resumes with other data."""
    if not isinstance(adapter, RandomAccess):
        return Examples()
    columns = {name: f"{values.dtype} {summary([values])}" for name, values in adapter.sample(count).items()}
    return Examples(own={"the number of examples": str(adapter.num_examples), **columns})


def _difference(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    if name not in here or name not in there:
        return f"column {name} exists only {'here' if name in here else 'there'}"
    if here[name][0] != there[name][0]:
        return f"column {name} differs in size: {here[name][0]} here, {there[name][0]} there"
    same = are_alike(here[name][1], there[name][1])
    return "" if same else f"column {name} has the same size, but other content"


def are_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Returns whether two summaries may be of the same arrays."""
    limit = _TOLERANCE * max(one[2], other[2])
    return one[0] == other[0] and bool(np.abs(np.subtract(one[1:], other[1:])).max() <= limit)


def summary(arrays: Iterable[Any]) -> tuple[float, ...]:
    """Returns four numbers about arrays: a hash of those that are not floats, and three sums of those that are."""
    hashed, sums = 0, np.zeros(3)
    for array in arrays:
        values = np.asarray(array).reshape(-1)
        values = values[:: max(1, len(values) // _VALUES)]
        if values.dtype.kind == "f":
            values = np.nan_to_num(values.astype(np.float64))
            pattern = np.cos(np.arange(len(values), dtype=np.float64))
            sums += [values.sum(), np.abs(values).sum(), (np.abs(values) * (pattern + 1)).sum()]
        else:
            content = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
            hashed = zlib.crc32(content, hashed)
    return float(hashed), *sums.tolist()
