"""Finds values that are not finite, or a label, in the data; reads it once more, if that gives the same data."""

from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfdist.data import inspection
from tfdist.data.inspection import Rows
from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit.adapters import base
from tfdist.keras_fit.adapters.base import BatchAdapter, DataAdapter, RandomAccessAdapter


def first_nonfinite(
    adapter: DataAdapter, shard: ReplicaShard, first_number: int, last_number: int
) -> tuple[int, str] | None:
    """Returns the first of these steps with a value that is not finite, and a sentence about it; None: all are finite.

    The place of a value is an index of the user's arrays, or the row of a batch.

    Args:
        first_number: counted from 1.
        last_number: the last step, counted in the same way.
    """
    if isinstance(adapter, BatchAdapter) and adapter.first_nonfinite is not None:
        return adapter.first_nonfinite(range(first_number, last_number + 1))
    return inspection.first_nonfinite(_rows_of_steps(adapter, shard, first_number, last_number))


def with_label(adapters: Mapping[str, DataAdapter | None], shard: ReplicaShard, label: int) -> str:
    """Returns the first target with this label, such as "y[17]"; "": none was found. Only arrays are searched.

    Args:
        adapters: the name of the data, for its targets ("validation_data: "; "" for those of training) -> its adapter.
    """
    for name, adapter in adapters.items():
        if isinstance(adapter, RandomAccessAdapter):
            for rows in _rows_of_steps(adapter, shard, 1, adapter.pass_steps):
                found = np.argwhere(rows.columns["y"] == label) if "y" in rows.columns else ()
                if len(found):
                    return name + rows.place("y", tuple(int(index) for index in found[0]))
    return ""


def _rows_of_steps(adapter: DataAdapter, shard: ReplicaShard, first_number: int, last_number: int) -> Iterator[Rows]:
    elements = adapter.dataset(shard, first_number - 1, last_number)
    for number, element in enumerate(elements.take((last_number - first_number + 1) * shard.local_replicas)):
        if int(element["count"]) == 0:
            continue
        step = first_number + number // shard.local_replicas
        replica = shard.first_replica + number % shard.local_replicas
        data = element["data"]
        given = data[0] if len(data) == 1 and isinstance(data[0], tuple) else data  # For a step of the model's own.
        if isinstance(adapter, RandomAccessAdapter):
            place = _of_arrays(adapter, shard, step - 1, replica)
        else:
            place = _of_batch(element, shard, replica)
        yield Rows(step=step, columns=base.name_columns(given), place=place)


def _of_arrays(adapter: RandomAccessAdapter, shard: ReplicaShard, step: int, replica: int):
    ids, _, _ = adapter.ids(tf.constant(step, tf.int64), tf.constant(replica, tf.int64), shard.num_replicas)
    ids = ids.numpy()
    return lambda column, at: f"{column}{base.indices(int(ids[at[0]]), *at[1:])}"


def _of_batch(element: dict, shard: ReplicaShard, replica: int):
    low, _ = base.shard_bounds(np.int64(replica), np.int64(element["total"]), shard.num_replicas)
    return base.place_in_batch(int(low))
