"""The objective of virtual replicas: another objective, evaluated shard by shard, whose sums are exact."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.training.step.objective import Objective, ShardResult
from tfdist.training.step.random_numbers import repeated_passes, seed_generators
from tfdist.training.step.variants import exact_sums, shards


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedObjective:
    """See `training.step.objective.Objective`; a training step calls `forward_backward` for each shard."""

    inner: Objective
    # Shards of a replica.
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts of the values' sums."""
        return exact_sums.names_of_parts(self.inner.names)

    def forward_backward(self, shard: Any, loss_scale: tf.Tensor | float) -> ShardResult:
        """Runs one shard forward and backward; called in `repeated_passes.as_replica`."""
        result = self.inner.forward_backward(shard, loss_scale)
        return ShardResult(exact_sums.cut(result.sums), result.gradients, result.weight)

    def evaluate(self, *element: Any) -> tf.Tensor:
        """Evaluates the shards of a replica, nested tensors [count, n, ...], one after another."""

        def of_shard(shard: tuple[Any, ...], index: tf.Tensor) -> list[tf.Tensor]:
            seed_generators.begin_evaluation_pass()
            with repeated_passes.as_replica(index):
                return [exact_sums.cut(self.inner.evaluate(*shard))]

        first, add = replicas_lib.replica_id() * self.count, lambda old, new: [old[0] + new[0]]
        return shards.over_shards(shards.compile_shard(of_shard), element, self.count, first, add)[0]

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        return self.inner.results(exact_sums.put_together(totals, self.inner.names))

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of `inner`."""
        return getattr(self.inner, name)
