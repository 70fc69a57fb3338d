"""The objective of virtual replicas: another objective, evaluated shard by shard, whose sums are exact.

The sums have the same bits in any order: each number is cut into three parts, each on its own grid.

float64 adds multiples of 2^g exactly up to 2^(g + 53). A number is the sum of a multiple of 2^16, of one of 2^-14 up to
2^15, and of one of 2^-44 up to 2^-15; what is left, below 2^-45, is dropped. So 2^24 numbers below 2^45 add up exactly.
The grids are bins as in Demmel and Nguyen (Parallel Reproducible Summation, IEEE Transactions on Computers, 2015), but
at fixed exponents.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.training.step.objective import Objective, ShardResult
from tfdist.training.step.random_numbers import repeated_passes, seed_generators
from tfdist.training.step.variants import shards

_GRIDS = (2.0**16, 2.0**-14, 2.0**-44)
# Suffixes of a value's name for the sums of its parts.
_ENDS = ("", " (second part)", " (third part)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedObjective:
    """See `training.step.objective.Objective`; a training step calls `forward_backward` for each shard."""

    inner: Objective
    # Shards of a replica.
    count: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sums: three parts for each value."""
        return names_of_parts(self.inner.names)

    def forward_backward(self, shard: Any, loss_scale: tf.Tensor | float) -> ShardResult:
        """Runs one shard forward and backward; called in `repeated_passes.as_replica`."""
        result = self.inner.forward_backward(shard, loss_scale)
        return ShardResult(cut(result.sums), result.gradients, result.weight)

    def evaluate(self, *stacked: Any) -> tf.Tensor:
        """Evaluates the shards of a replica, nested tensors [count, n, ...], one after another."""

        def of_shard(shard: tuple[Any, ...], index: tf.Tensor) -> tf.Tensor:
            seed_generators.begin_evaluation_pass()
            with repeated_passes.as_replica(index):
                return cut(self.inner.evaluate(*shard))

        first = replicas_lib.replica_id() * self.count
        return shards.over_shards(shards.compile_shard(of_shard), stacked, self.count, first, tf.add)

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        return self.inner.results(put_together(totals, self.inner.names))

    def __getattr__(self, name: str) -> Any:
        """All other attributes are those of `inner`."""
        return getattr(self.inner, name)


def names_of_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the sums that `cut` makes of the sums with `names`."""
    return tuple(f"{name}{end}" for end in _ENDS for name in names)


def cut(sums: tf.Tensor) -> tf.Tensor:
    """Cuts sums, float64 [k + 1], into parts, float64 [3 * k + 1]. The last element of both is the number of examples.

    The first part of a non-finite number is itself.
    """
    rest, parts = sums[:-1], []
    for grid in _GRIDS:
        parts.append(tf.where(tf.math.is_finite(rest), tf.round(rest / grid) * grid, rest))
        rest = tf.where(tf.math.is_finite(rest), rest - parts[-1], tf.zeros_like(rest))
    return tf.concat([*parts, sums[-1:]], axis=0)


def put_together(totals: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Returns the totals by name, with the parts of the values `names` added up."""
    first, *others = _ENDS
    sums = {name: totals[f"{name}{first}"] + math.fsum(totals[f"{name}{end}"] for end in others) for name in names}
    left_out = {f"{name}{end}" for name in names for end in others}
    return {name: value for name, value in totals.items() if name not in left_out} | sums
