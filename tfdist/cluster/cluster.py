"""The workers of a run, seen from one of them: scope, datasets, collectives between workers, heartbeat."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster import distributed_dataset
from tfdist.cluster.control.heartbeat_monitor import HeartbeatMonitor
from tfdist.cluster.devices import replicas
from tfdist.cluster.discovery.roster import Roster

# Seconds that a finished worker waits for the others before it exits.
SHUTDOWN_SECONDS = 600.0

# The blocks that run on one worker only, outermost first: (description, advice to the user).
_running: list[tuple[str, str]] = []


@contextlib.contextmanager
def on_one_worker(what: str, advice: str) -> Iterator[None]:
    """Marks a block, `what` in messages, that runs on this worker only: in it, `require_all_workers` raises."""
    _running.append((what, advice))
    try:
        yield
    finally:
        _running.pop()


def is_on_one_worker() -> bool:
    """Returns True inside `on_one_worker`."""
    return bool(_running)


def require_all_workers(purpose: str) -> None:
    """Raises RuntimeError if a collective, `purpose`, is called inside `on_one_worker`."""
    if _running:
        what, advice = _running[-1]
        raise RuntimeError(f"{what} runs on one worker only, but {purpose} requires all workers: {advice}.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The workers of this run, seen from one of them."""

    strategy: tf.distribute.Strategy
    rank: int
    num_workers: int
    num_replicas: int
    # The implementation of the all-reduce of a step: "nccl", "ring" or "tcp".
    implementation: str
    # Host and devices of each worker.
    roster: Roster
    # Watches this worker, and the others if there are any.
    monitor: HeartbeatMonitor
    # Compiled collectives, so that each is traced only once: "broadcast", and `all_gather` by its dtype.
    compiled: dict[Any, Callable] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @property
    def is_chief(self) -> bool:
        """True on worker 0, which writes files and prints."""
        return self.rank == 0

    @property
    def device_type(self) -> str:
        """The type of the replicas' devices: "CPU" or "GPU"."""
        return tf.DeviceSpec.from_string(self.strategy.extended.worker_devices[0]).device_type

    def scope(self) -> AbstractContextManager:
        """Returns the scope in which models, optimizers and metrics are created.

        On exit, new variables are set to the chief's values. Collective.
        """
        if self.num_workers == 1:
            return self.strategy.scope()
        from tfdist.cluster.several_workers import broadcasts

        return broadcasts.scope(self.strategy, self._equalise)

    def _equalise(self, variables: list[tf.Variable]) -> None:
        """Sets new variables to the chief's values if they differ on any worker. Collective.

        Raises:
            ValueError: the workers have created different numbers of variables.
        """
        from tfdist.cluster.several_workers import broadcasts

        variables = [variable for variable in variables if tf.as_dtype(variable.dtype) != tf.string]
        counts = self.all_gather([len(variables)])[:, 0].tolist()
        if len({*counts}) > 1:
            raise ValueError(
                "The workers have created different numbers of variables in cluster.scope(), by rank: "
                f"{', '.join(map(str, counts))}. Build the same model on all workers."
            )
        if variables:
            hashes = self.all_gather(broadcasts.hash_values(self.strategy, variables))
            differs = (hashes != hashes[0]).any(axis=0)
            differing = [variable for variable, one in zip(variables, differs, strict=True) if one]
            self.broadcast_variables(differing)

    def distribute(self, dataset: tf.data.Dataset) -> Iterator:
        """Returns an iterator over this worker's `dataset`, which has one element per local replica and step."""
        return distributed_dataset.distribute(self.strategy, dataset)

    def distribute_global(self, dataset: tf.data.Dataset) -> Iterator:
        """Returns an iterator over global batches, which TensorFlow shards; see `distributed_dataset`."""
        return distributed_dataset.distribute_global(self.strategy, dataset)

    def created_here(self, variable: tf.Variable) -> bool:
        """Returns True if `variable` was created in the scope of this cluster."""
        return self.strategy.extended.variable_created_in_scope(variable)

    def all_gather(self, values: Sequence[int] | Sequence[float]) -> np.ndarray:
        """Gathers numbers of all workers on every worker. Collective: all workers call it with the same length.

        Args:
            values: k numbers of this worker, all integers (below 2**63) or all floats; the same kind on all workers.

        Returns:
            int64 or float64 [num_workers, k], in rank order.
        """
        numbers = np.asarray(values)
        numbers = numbers.astype(np.int64 if numbers.dtype.kind in "biu" else np.float64)
        if self.num_workers == 1:
            return numbers[np.newaxis]
        require_all_workers("communication")
        if numbers.dtype not in self.compiled:
            self.compiled[numbers.dtype] = self._compile_all_gather(numbers.dtype)
        with self.monitor.in_collective("an exchange of values"):
            rows = self.compiled[numbers.dtype](tf.constant(numbers)).numpy()
        return rows[:: self.num_replicas // self.num_workers]

    def _compile_all_gather(self, dtype: np.dtype) -> Callable[[tf.Tensor], tf.Tensor]:
        def row(numbers: tf.Tensor) -> tf.Tensor:
            # Every strategy supports sums: each replica fills its own row and adds 0 to others. Exact for all dtypes.
            is_own = tf.equal(tf.range(self.num_replicas), replicas.replica_id())
            return tf.where(is_own[:, tf.newaxis], numbers[tf.newaxis], tf.zeros([], numbers.dtype))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], dtype)])
        def all_gather(numbers: tf.Tensor) -> tf.Tensor:
            return self.strategy.reduce("SUM", self.strategy.run(row, args=(numbers,)), axis=None)

        # Traced here: of functions that calls trace, TensorFlow would warn after some.
        return all_gather.get_concrete_function()

    def broadcast(self, value: int) -> int:
        """Returns the chief's `value`, below 2**63, on every worker. Collective."""
        return int(self.all_gather([int(value)])[0, 0])

    def all_gather_text(self, text: str) -> list[str]:
        """Gathers one string from each worker on every worker, in rank order. Collective."""
        encoded = text.encode()
        sizes = self.all_gather([len(encoded)])[:, 0].tolist()
        words = np.zeros(-(-max(sizes) // 8), np.int64)
        words.view(np.uint8)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        rows = self.all_gather(words)
        return [row.tobytes()[:size].decode() for row, size in zip(rows, sizes, strict=True)]

    def any_worker(self, value: bool) -> bool:
        """Returns True if `value` is true on any worker. Collective."""
        return bool(self.all_gather([int(value)]).any())

    def barrier(self) -> None:
        """Waits until all workers have called it. Collective."""
        self.broadcast(0)

    def broadcast_bytes(self, value: bytes) -> bytes:
        """Returns the chief's `value` on every worker. Collective."""
        if self.num_workers == 1:
            return value
        from tfdist.cluster.several_workers import broadcasts

        return broadcasts.bytes_of_chief(value, self.broadcast(len(value)), self.is_chief, self._values_of_chief)

    def _values_of_chief(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        from tfdist.cluster.several_workers import broadcasts

        require_all_workers("a broadcast")
        if "broadcast" not in self.compiled:
            self.compiled["broadcast"] = broadcasts.values_of_chief(self.strategy)
        with self.monitor.in_collective("a broadcast"):
            return self.compiled["broadcast"](values)

    def broadcast_variables(self, variables: Iterable[keras.Variable | tf.Variable]) -> None:
        """Sets all variables except strings to the chief's values on every worker. Collective."""
        if self.num_workers > 1:
            from tfdist.cluster.several_workers import broadcasts

            broadcasts.assign(variables, self._values_of_chief)

    def leave(self) -> None:
        """Waits for all workers to finish: if one exits early, TensorFlow makes the others fail after about 8 s.

        Raises:
            TimeoutError: some workers did not finish within `SHUTDOWN_SECONDS`.
        """
        self.monitor.wait_until_finished(SHUTDOWN_SECONDS)
