"""Virtual replicas of a script: the losses and metrics of a compiled model, computed shard by shard, to the bit.

The numbers of Keras' metrics are sums over examples. Those of one shard are sums that the step returns beside its loss,
and they are added up exactly, as `training/step/variants/sharded_objective.py` says.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.config import specs
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.compiled_objective import CompiledObjective, Element
from tfdist.keras_fit.own_step import own_setup
from tfdist.keras_fit.whole_batch import metric_state
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.per_example import is_per_example
from tfdist.keras_fit.whole_batch.rows import Rows
from tfdist.training import api as trainer

# Of all metrics: a total of each is sent, and saved in checkpoints, by its name.
_MAX_NUMBERS = 20_000


def open_shards(cluster: Cluster, model: keras.Model, config: config_lib.Config, data: list[DataAdapter]) -> "Shards":
    """Raises ValueError if a compiled model computes something of more than one shard, or of the number of replicas."""
    total = config.train.virtual_replicas
    problems = list(_problems(model))
    specs_of_data = [spec for one in data for spec in tf.nest.flatten(one.element_spec)]
    if any(not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None for spec in specs_of_data):
        problems.append("the data has ragged or sparse tensors, or such of unknown rank: make them dense")
    if problems:
        raise ValueError(f"virtual_replicas={total} cannot be used: {'; '.join(problems)}.")
    return Shards(
        cluster=cluster, parts=specs.part("train.virtual_replicas")(config, cluster.num_replicas, uneven=True)
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Puts together a run of a compiled model whose global batch has a fixed number of shards."""

    cluster: Cluster
    # `VirtualReplicas` of training/step/variants/virtual_replicas.py.
    parts: Any

    @property
    def total(self) -> int:
        return self.parts.total

    def objective(self, *, model: keras.Model, **fields: Any) -> "ShardedCompiledObjective":
        """Makes the objective of a built model; arguments as `CompiledObjective`."""
        _check_metrics(self.total, model)
        assign = _make_assign(self.cluster, model)
        return ShardedCompiledObjective(model=model, total=self.total, assign=assign, **fields)


def _problems(model: keras.Model) -> Iterator[str]:
    name = type(model).__name__
    own = [*own_setup.overrides(model), *(["compute_loss"] if compiled_model.overrides(model, "compute_loss") else [])]
    if own:
        yield f"{name} has its own {own[0]}, which may compute what is not divided into shards"
    if model.jit_compile:
        yield "it was not tried with compile(jit_compile=True)"
    if model.run_eagerly:
        yield "compile(run_eagerly=True) runs operations in Python, not as a function of a shard"
    for layer in trainer.layers_of_all_depths(model):
        if getattr(layer, "stateful", False) and isinstance(layer, keras.layers.RNN):
            yield f"the layer {layer.name!r} is stateful: each row of a batch continues a row of the last batch"
    for loss in compiled_model.compile_losses(model):
        if loss is not None and not is_per_example(keras.losses.get(loss)):
            label = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", loss)
            yield (
                f"the loss {label!r} is computed on the whole batch, and a shard has its own examples only; if it is a "
                "mean over examples, tfdist.per_example(loss) says so"
            )
        elif getattr(loss, "reduction", None) == "mean_with_sample_weight":
            yield f"the loss {loss.name!r} is divided by the weights of the whole batch (mean_with_sample_weight)"


def _check_metrics(total: int, model: keras.Model) -> None:
    """Raises ValueError if a metric of a built model is no sum over examples, or has too many numbers."""
    for metric in metric_state.metrics_of(model):
        if not is_per_example(metric):
            raise ValueError(
                f"virtual_replicas={total} cannot be used: the metric {metric.name!r} is computed on the whole batch, "
                "and a shard has its own examples only. If its state is a sum over examples, "
                "tfdist.per_example(metric) says so."
            )
    numbers = _size(_metric_variables(model))
    if numbers > _MAX_NUMBERS:
        raise ValueError(
            f"virtual_replicas={total} cannot be used: the metrics have {numbers:,} numbers, of which each is summed "
            f"exactly; at most {_MAX_NUMBERS:,} are supported. Pass fewer thresholds or classes to them."
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardedCompiledObjective(CompiledObjective):
    """The losses and metrics of a compiled model over the examples of one shard; see `CompiledObjective`."""

    # Shards of the global batch.
    total: int
    # (numbers, float64 [k]): assigns them to the variables of the metrics.
    assign: Callable[[tf.Tensor], None]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the losses, and of each number of the metrics."""
        return (*CompiledObjective.names.fget(self), *self._numbers)

    @property
    def _numbers(self) -> list[str]:
        return [f"number {index} of the metrics" for index in range(_size(_metric_variables(self.model)))]

    @tf.autograph.experimental.do_not_convert
    def forward_backward(self, shard: Element, loss_scale: tf.Tensor | float) -> trainer.ShardResult:
        self._start()
        result = CompiledObjective.forward_backward(self, shard, loss_scale)
        return trainer.ShardResult(self._with_numbers(result.sums), result.gradients, result.weight)

    @tf.autograph.experimental.do_not_convert
    def evaluate(self, shard: Element) -> tf.Tensor:
        self._start()
        return self._with_numbers(CompiledObjective.evaluate(self, shard))

    def results(self, totals: dict[str, float]) -> dict[str, float]:
        """Returns Keras' logs of the sums `totals` over all shards. A collective: every worker must call it."""
        if names := self._numbers:
            self.assign(tf.constant([totals[name] for name in names], tf.float64))
        return CompiledObjective.results(self, totals)

    def state(self) -> list[Any]:
        """Returns an empty list: the numbers of metrics are saved with the totals of the epoch."""
        return []

    def restore_state(self, values: list[Any]) -> None:
        """Does nothing: `state` is empty."""

    def _rows(self, element: Element, *, training: bool) -> Rows:
        shard = trainer.replica_of_pass(), self.total
        return rows_lib.rows_of(element, self.batch_sizes[training], shard)

    def _start(self) -> None:
        for variable in _metric_variables(self.model):
            variable.assign(tf.zeros(variable.shape, variable.dtype))

    def _with_numbers(self, sums: tf.Tensor) -> tf.Tensor:
        return tf.concat([sums[:-1], *metric_state.flatten(_metric_variables(self.model)), sums[-1:]], axis=0)


def _metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the variables of a model's metrics, without those of the losses."""
    losses = {"loss", *(tracker.name for tracker in compiled_model.trackers(model))}
    return [variable for metric in model.metrics if metric.name not in losses for variable in metric.variables]


def _make_assign(cluster: Cluster, model: keras.Model) -> Callable[[tf.Tensor], None]:
    """Returns a function that assigns numbers to the variables of metrics: on the first replica, and 0 on others."""

    def on_replica(numbers: tf.Tensor) -> None:
        counted = tf.where(tf.equal(replicas_lib.replica_id(), 0), numbers, tf.zeros_like(numbers))
        metric_state.assign_numbers(_metric_variables(model), counted)

    # Traced once, at its first call.
    @functools.cache
    def trace() -> Callable[[tf.Tensor], None]:
        function = tf.function(lambda numbers: cluster.strategy.run(on_replica, args=(numbers,)), autograph=False)
        size = _size(_metric_variables(model))
        return function.get_concrete_function(tf.TensorSpec([size], tf.float64))

    return lambda numbers: trace()(numbers)


def _size(variables: list[keras.Variable]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)
