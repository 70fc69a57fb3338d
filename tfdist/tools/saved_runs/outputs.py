"""Computes the outputs of a model for all examples of a source, on all replicas, and gathers them on every worker."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather
from tfdist.data import stream
from tfdist.data.stream import Prepare, Source
from tfdist.tools.saved_runs import weights
from tfdist.tools.saved_runs.saved import SavedRun
from tfdist.training import run as run_lib

# Seconds between two lines of progress where they cannot be overwritten.
_SECONDS = 10.0


def compute(
    cluster: Cluster,
    call: Callable[[Mapping[str, tf.Tensor]], Any],
    source: Source,
    prepare: Prepare,
    *,
    batch: int,
    keep: tuple[str, ...] = (),
    name: str = "examples",
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Calls a model for every example once. Collective: all workers call it.

    Args:
        call: (prepared batch) -> the outputs [n, ...] of a model that was made in the cluster's scope.
        batch: examples of a step over all replicas; rounded up to a multiple of the replicas.
        keep: the columns of the prepared batch to return as well, if they are there.
        name: of examples, for the progress on the standard error.

    Returns:
        The outputs [examples, ...] as float32 in the order of `source`, and the columns of `keep`.
    """
    batch = -(-batch // cluster.num_replicas) * cluster.num_replicas
    dataset, steps = stream.evaluation(source, prepare, run_lib.replica_shard(cluster), global_batch=batch, seed=0)

    def replica(element: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        columns, _ = element
        kept = {key: columns[key] for key in keep if key in columns}
        return tf.cast(tf.convert_to_tensor(call(columns)), tf.float32), kept

    @tf.function(autograph=False)
    def step(iterator: Iterator) -> Any:
        return gather.gather(cluster, cluster.strategy.run(replica, args=(next(iterator),)))

    iterator, found, progress = cluster.distribute(dataset), [], _Progress(len(source), name, cluster.is_chief)
    for number in range(steps):
        with cluster.monitor.in_collective("predictions"):
            found.append(tf.nest.map_structure(lambda value: value.numpy(), step(iterator)))
        cluster.monitor.note_progress(number + 1)
        progress.show(min((number + 1) * batch, len(source)))
    outputs, kept = tf.nest.map_structure(lambda *parts: np.concatenate(parts)[: len(source)], *found)
    return outputs, kept


def caller(saved: SavedRun, model: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Returns call(batch) -> the outputs of `model` for the prepared batch."""
    if weights.several(model):
        return lambda batch: model(keras.tree.map_structure(lambda one: batch[one.name], model.input), training=False)
    key = saved.input_key()
    return lambda batch: model(batch[key], training=False)


class _Progress:
    """One line on a terminal, that is overwritten; elsewhere a line now and then."""

    def __init__(self, total: int, name: str, shown: bool):
        self._total, self._name, self._shown = total, name, shown
        self._line = sys.stderr.isatty()
        self._last = self._started = time.monotonic()

    def show(self, done: int) -> None:
        now, ends = time.monotonic(), done == self._total
        if not self._shown or not (self._line or ends or now - self._last > _SECONDS):
            return
        self._last = now
        rate = f"{done / max(now - self._started, 1e-9):,.0f} {self._name}/s"
        end = ("\r", "\n")[ends] if self._line else "\n"
        print(f"{done:,}/{self._total:,} {self._name}, {rate}", end=end, file=sys.stderr, flush=True)
