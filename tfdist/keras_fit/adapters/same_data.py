"""Compares the workers' data before a run: a difference is reported by column, and as one of size or of content.

A column is compared by a hash of its values, which is the same in every process. Floats may differ in their last bits,
because processors round differently: if their hashes differ, some of their values decide.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.data.feed import Examples
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.adapters.base import BatchAdapter, DataAdapter, RandomAccessAdapter

# Examples that are read to compare them with those of other workers, evenly spaced.
_EXAMPLES = 16
# Values of a float column that are compared if its hash differs, and their relative tolerance.
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
    if isinstance(adapter, RandomAccessAdapter):
        size = f"{adapter.num_examples} examples, {size}"
    columns = _sample(adapter, _EXAMPLES)
    here = {name: (f"{values.dtype} {list(values.shape)}", digest(values)) for name, values in columns.items()}
    floats = {name: _some(values) for name, values in columns.items() if values.dtype.kind == "f"}
    content = b""
    if cluster.is_chief:
        file = io.BytesIO()
        header = np.frombuffer(json.dumps([size, here]).encode(), np.uint8)
        np.savez(file, header=header, **{_key(name): values for name, values in floats.items()})
        content = file.getvalue()
    content = cluster.broadcast_bytes(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as chief:
        size_there, there = json.loads(chief["header"].tobytes())
        problems = [] if size == size_there else [f"{size} here, {size_there} there"]
        for name in floats:
            same_size = name in there and here[name][0] == there[name][0]
            if same_size and np.allclose(floats[name], chief[_key(name)], rtol=_TOLERANCE, atol=0, equal_nan=True):
                here[name] = (here[name][0], there[name][1])
    if not problems:  # Rows are read by the size.
        there = {name: tuple(values) for name, values in there.items()}
        problems = [text for name in {**here, **there} if (text := _difference(name, here, there))]
    if problems:
        raise ValueError(
            f"Worker {cluster.rank} has other data than worker 0: {'; '.join(problems)}. All workers must pass the "
            "same data in the same order; each takes its shard. Seed the shuffling: call keras.utils.set_random_seed "
            "before the dataset is made."
        )


def examples(adapter: DataAdapter, count: int) -> Examples:
    """Hashes the size of arrays, and `count` rows, to notice if a run resumes with other data."""
    if not isinstance(adapter, RandomAccessAdapter):
        return Examples()
    columns = {name: f"{values.dtype} {digest(values)}" for name, values in _sample(adapter, count).items()}
    return Examples(own={"the number of examples": str(adapter.num_examples), **columns})


def digest(values: np.ndarray) -> str:
    """Returns a hash of an array's values that is the same in every process, also for strings and other objects."""
    hashed = hashlib.sha256()
    if values.dtype.hasobject:
        for value in values.reshape(-1):
            encoded = value if isinstance(value, bytes) else repr(value).encode()
            hashed.update(len(encoded).to_bytes(8, "little") + encoded)
    else:
        hashed.update(np.ascontiguousarray(values).tobytes())
    return hashed.hexdigest()


def _sample(adapter: DataAdapter, count: int) -> dict[str, np.ndarray]:
    """Returns values of each column by name; empty if reading would consume the data."""
    if isinstance(adapter, RandomAccessAdapter):
        ids = np.unique(np.linspace(0, adapter.num_examples - 1, count).astype(np.int64))
        reading = tf.data.Dataset.from_tensors(ids).map(tf.autograph.experimental.do_not_convert(adapter.read))
        return base.name_columns(next(iter(reading)))
    if isinstance(adapter, BatchAdapter) and adapter.sample is not None:
        return adapter.sample()
    return {}


def _difference(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> str:
    if name not in here or name not in there:
        return f"column {name} exists only {'here' if name in here else 'there'}"
    if here[name][0] != there[name][0]:
        return f"column {name} differs in size: {here[name][0]} here, {there[name][0]} there"
    return "" if here[name][1] == there[name][1] else f"column {name} has the same size, but other content"


def _some(values: np.ndarray) -> np.ndarray:
    flat = values.reshape(-1)
    return flat[:: max(1, len(flat) // _VALUES)]


def _key(name: str) -> str:
    return f"column {name.encode().hex()}"  # A name may hold any character, and a file's name may not.
