"""The workers of a run, seen from one of them: scope, data, collectives between workers."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import collective_guard, distributed_dataset
from tfdist.cluster.liveness import heartbeat

# How long a worker that has finished waits for the others before it leaves.
SHUTDOWN_SECONDS = 600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The workers of this run, seen from one of them."""

    strategy: tf.distribute.Strategy
    rank: int
    num_workers: int
    num_replicas: int
    # One line per worker, in rank order: who it is, which devices it holds, how they talk; and a warning where the
    # environment looks as if something else was meant, such as a forgotten srun.
    roster: tuple[str, ...]
    # Watches the other workers; None where there are none.
    monitor: heartbeat.HeartbeatMonitor | None

    @property
    def is_chief(self) -> bool:
        """Whether this worker, rank 0, is the one that writes and prints."""
        return self.rank == 0

    def scope(self) -> AbstractContextManager:
        """The scope in which models, optimizers and metrics are made."""
        return self.strategy.scope()

    def distribute(self, dataset: tf.data.Dataset) -> Iterator:
        """Returns an iterator over this worker's `dataset`, which has an element per local replica and step."""
        return distributed_dataset.distribute(self.strategy, dataset)

    def created_here(self, variable: tf.Variable) -> bool:
        """Whether `variable` was made in the scope of this cluster."""
        return self.strategy.extended.variable_created_in_scope(variable)

    def gather(self, value: tf.Tensor) -> tf.Tensor:
        """Puts the replicas' values [n, ...] below each other, in their order; `n` may differ. All must call it."""
        return self.strategy.gather(value, axis=0)

    def broadcast(self, value: int) -> int:
        """Returns the chief's `value` on every worker; all must call it."""
        return self._sum(value, lambda mine: tf.where(replica_id() == 0, mine, 0))

    def any_worker(self, value: bool) -> bool:
        """Returns whether `value` is true of any worker; all must call it."""
        return self._sum(value, lambda mine: mine) > 0

    def broadcast_bytes(self, value: bytes) -> bytes:
        """Returns the chief's `value` on every worker; all must call it."""
        size = self.broadcast(len(value))
        if self.num_workers == 1 or size == 0:
            return value[:size]
        mine = np.frombuffer(value, np.uint8) if self.is_chief else np.zeros(size, np.uint8)
        (chiefs,) = self._make_broadcast()([tf.constant(mine, tf.int32)])
        return chiefs.numpy().astype(np.uint8).tobytes()

    def _sum(self, value: int, part: Callable[[tf.Tensor], tf.Tensor]) -> int:
        if self.num_workers == 1:
            return int(value)
        collective_guard.check("communication")

        @tf.function(autograph=False)
        def share(mine: tf.Tensor) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(part, (mine,)), axis=None)

        return int(share(tf.constant(int(value), tf.int64)))

    def _make_broadcast(self) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
        @tf.function(autograph=False)
        def share(mine: list[tf.Tensor]) -> list[tf.Tensor]:
            chosen = self.strategy.run(
                lambda: [tf.where(replica_id() == 0, value, tf.zeros_like(value)) for value in mine]
            )
            return [self.strategy.reduce("SUM", value, axis=None) for value in chosen]

        return share

    def make_broadcast_variables(self, variables: Iterable[Any]) -> Callable[[], None]:
        """Makes a function that gives every worker the chief's values of these variables; all must call it.

        Args:
            variables: of Keras or TensorFlow; those that hold no floats and no signed integers are passed over.
        """
        kinds = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
        copied = [variable.value if isinstance(variable, keras.Variable) else variable for variable in variables]
        copied = [variable for variable in copied if tf.as_dtype(variable.dtype) in kinds]
        if self.num_workers == 1 or not copied:
            return lambda: None
        share = self._make_broadcast()

        def copy() -> None:
            collective_guard.check("a broadcast of variables")
            for variable, value in zip(copied, share([tf.convert_to_tensor(one) for one in copied]), strict=True):
                variable.assign(value)

        return copy

    def broadcast_variables(self, variables: Iterable[Any]) -> None:
        """Gives every worker the chief's values of these Keras variables; all must call it."""
        self.make_broadcast_variables(variables)()

    def make_gather(self) -> Callable[[Sequence[float]], np.ndarray]:
        """Makes a function that gives every worker the numbers of all: [k] -> float64 [num_workers, k].

        All workers must call it with equally many.
        """
        if self.num_workers == 1:
            return lambda mine: np.array([mine], np.float64)
        local_replicas = self.num_replicas // self.num_workers

        def one_row(mine: tf.Tensor) -> tf.Tensor:
            # The first replica of each worker fills its row; the sum over replicas puts the rows together.
            first = tf.equal(tf.range(self.num_workers) * local_replicas, replica_id())
            return tf.where(first[:, tf.newaxis], mine[tf.newaxis], tf.zeros([], tf.float64))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.float64)])
        def gather(mine: tf.Tensor) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(one_row, args=(mine,)), axis=None)

        def told(mine: Sequence[float]) -> np.ndarray:
            collective_guard.check("communication")
            return gather(tf.constant(mine, tf.float64)).numpy()

        return told

    @property
    def variables_are_central(self) -> bool:
        """Whether each variable exists once, and what replicas assign or add to it is joined to one value before."""
        return isinstance(self.strategy, tf.distribute.experimental.CentralStorageStrategy)

    def average_updates(self, variables: Iterable[Any]) -> None:
        """Where variables are central, makes what replicas assign to these Keras variables one value: the mean."""
        if self.variables_are_central:
            for variable in variables:
                variable.value._aggregation = tf.VariableAggregation.MEAN

    def heartbeat(self, step: int) -> None:
        """Notes that a call has ended, after so many finished steps; one that never ends is noticed by the next."""
        if self.monitor is not None:
            self.monitor.heartbeat(step)

    def pause(self) -> None:
        """Notes that no call is under way, and that until the next nothing can be said about when one ends."""
        if self.monitor is not None:
            self.monitor.pause()


def replica_id() -> tf.Tensor:
    """The index of the calling replica among all replicas, int32 []; to be called in `strategy.run`."""
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.int32)


def leave(cluster: Cluster) -> None:
    """Waits for all workers to finish: one that exits early makes the others fail in about 8 s."""
    if cluster.monitor is not None:
        cluster.monitor.finish(SHUTDOWN_SECONDS)
