"""The objective of a model with a `train_step` or `test_step` of its own: the user's step on each replica's shard.

Read `train_step` first. Keras computes a step's losses as means over the shard. A gradient tape returns the mean of the
gradients of variables over all replicas, weighted by their examples: the gradients of the mean over the global batch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.keras_fit import compiled_model, messages
from tfdist.keras_fit.compiled_objective import Element
from tfdist.keras_fit.own_step import discover, replica_step
from tfdist.keras_fit.own_step.discover import Discovered
from tfdist.keras_fit.own_step.replica_step import ReplicaStep
from tfdist.keras_fit.whole_batch import metric_state, reductions, shard_losses
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.metric_state import ModelObjective
from tfdist.keras_fit.whole_batch.shard_losses import ShardLosses
from tfdist.training import api as trainer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnStepObjective(ModelObjective):
    """The values that a user's steps report; see `training.step.objective.Objective`."""

    # None: the run does not train, or does not evaluate.
    train: Discovered | None
    test: Discovered | None
    # The last step's numbers, as each replica's part of their means: float64 [numbers], per replica.
    last_numbers: dict[str, keras.Variable]
    # Examples of the largest global batch, for "train" and "test".
    batch_sizes: dict[str, int]
    # Lines that assign a variable other than by an optimizer, by the variable's path.
    assigned: dict[str, set[str]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What is summed in each step: the loss, to find non-finite ones; and examples of training steps."""
        return ("loss", "trained")

    def evaluate(self, shard: Element) -> tf.Tensor:
        """Runs the user's `test_step` on a replica's shard; returns sums as in `ShardResult`."""
        return self.run_step("test", shard, apply=_no_apply)

    @tf.autograph.experimental.do_not_convert
    def run_step(
        self, kind: str, shard: Element, apply: Any, average: Any = None, statistics: Sequence[Any] = ()
    ) -> tf.Tensor:
        """Runs a user's step on a replica's shard; called in `strategy.run`.

        Args:
            kind: "train" or "test".
            apply: see `ReplicaStep`; so `average`.
            statistics: variables that are averaged over the replicas after the step.

        Returns:
            Sums as in `ShardResult`.
        """
        rows = rows_lib.rows_of(shard, self.batch_sizes[kind])
        step = ReplicaStep(rows=rows, apply=apply, average=average, assigned=self.assigned)
        step.statistics.update(id(one) for one in statistics)
        discovered = self.train if kind == "train" else self.test
        metrics = metric_variables(self.model, self.train, self.test) if self.may_be_empty else []
        kept = [(one, tf.convert_to_tensor(one.value)) for one in metrics if not metric_state.is_whole(one)]
        step.before.update((id(one), value) for one, value in kept)
        if kind == "train":
            trainer.begin_forward_pass(0)
        else:
            trainer.begin_evaluation_pass()
        assert shard_losses.losses_are_patched(), "call this within shard_losses.patch_losses"
        present = trainer.shard_present(rows.present)
        losses = shard_losses.mode(alone=True, shard=ShardLosses(rows=rows, means=True))
        with losses, present, trainer.loss_weight_context(rows.weight), replica_step.tracing(step):
            values = discovered.function(shard["data"][0])
            numbers = [reductions.share_value(one, rows) for one in discover.scalars(values, discovered.numbers)]
            numbers = [tf.cast(one, tf.float64) for one in numbers]
        for variable, old in kept:
            variable.assign(tf.where(rows.count > 0, variable.value, old))
        if discovered.numbers:
            present = tf.where(rows.count > 0, tf.stack(numbers), tf.zeros([len(numbers)], tf.float64))
            self.last_numbers[kind].assign(present * tf.cast(rows.weight, tf.float64))
        losses = [name for name in (*discovered.numbers, *discovered.metrics) if "loss" in name]
        losses = [tf.cast(one, tf.float64) for one in discover.scalars(values, losses)]
        loss = tf.add_n([tf.zeros([], tf.float64), *losses])
        count = tf.cast(rows.count, tf.float64)
        return tf.stack([loss * count, count if kind == "train" else tf.zeros_like(count), count])

    def results(self, totals: dict[str, float]) -> dict[str, Any]:
        """Returns Keras' logs after the last step. A collective: every worker must call it."""
        kind = "train" if totals["trained"] > 0 else "test"
        discovered = self.train if kind == "train" else self.test
        numbers = keras.ops.convert_to_numpy(self.last_numbers[kind]).tolist()
        logs = dict(zip(discovered.numbers, numbers, strict=True))
        results = {id(metric): metric.result() for metric, _ in discovered.metrics.values()}
        for name, (metric, key) in discovered.metrics.items():
            result = results[id(metric)]
            logs[name] = compiled_model.as_keras(result if key is None else compiled_model.flat(result)[key])
        return {name: logs[name] for name in self._order(discovered, list(logs))}

    def of_epoch(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the logs of an epoch: as in Keras the model's metrics, if the step returns values of their names.

        A collective: every worker must call it.
        """
        found = compiled_model.flat(self.model.get_metrics_result())
        if set(found) != set(logs):
            return logs
        found = {name: compiled_model.as_keras(found[name]) for name in logs}
        _tell_if_never_updated({name: logs[name] for name, value in found.items() if np.all(value == 0)})
        return found

    def _order(self, discovered: Discovered, names: Sequence[str]) -> Sequence[str]:
        """As in Keras: the order of the model's metrics if these are all values, else that of tf.function."""
        results = discovered.metrics.items()
        ordered = [name for metric in self.model.metrics for name, (of, _) in results if of is metric]
        return ordered if set(ordered) == set(names) else discovered.names


def train_step(context: trainer.StepContext, shard: Element) -> tf.Tensor:
    """Makes one step of the user's on this replica's shard, in `strategy.run`; returns `ShardResult.sums`."""
    objective = context.objective
    statistics = [(statistic, tf.convert_to_tensor(statistic.value)) for statistic in context.statistics]
    fraction = shard["count"] / shard["total"]
    owners = {id(one): optimizer for optimizer, variables in objective.train.optimizers for one in variables}

    def average(gradients: list[Any], variables: list[Any]) -> list[Any]:
        optimizer = next((owners[id(one)] for one in variables if id(one) in owners), context.optimizer)
        owner = getattr(optimizer, "inner_optimizer", optimizer)
        gradients = trainer.select_rows(gradients, variables, shard["data"], owner)
        if context.cluster.num_replicas > 1:
            gradients = trainer.scale_gradients(gradients, fraction)
        return context.reduction(gradients, [], [], fraction)[0]

    def apply(optimizer: Any, original: replica_step.Apply, gradients: list[Any], variables: list[Any] | None) -> Any:
        owner = getattr(optimizer, "inner_optimizer", optimizer)
        known = owner._trainable_variables if variables is None else list(variables)
        step = replica_step.current()
        done = step.pop_averaged(gradients, known)
        others = [place for place, of in enumerate(done) if not of]
        parts = [step.share_of_mean(gradients[place]) for place in others]
        averaged = average(parts, [known[place] for place in others])
        for place, gradient in zip(others, averaged, strict=True):
            gradients[place] = gradient
        with trainer.convert_in_fixed_order():
            return original(gradients, variables)

    sums = objective.run_step("train", shard, apply, average, context.statistics)
    context.reduction([], [], statistics, fraction)
    context.step_count.assign_add(1)
    trainer.add_to_totals(context, sums, None)
    return trainer.after_update(context, sums)


def _no_apply(optimizer: Any, *given: Any) -> None:
    raise ValueError(f"test_step applies the optimizer {optimizer.name!r}: an evaluation must not train.")


def metric_variables(model: keras.Model, *steps: Discovered | None) -> list[keras.Variable]:
    """Returns the variables of the metrics of `model`, and of those that its steps report."""
    found = {id(variable): variable for variable in model.metrics_variables}
    for discovered in filter(None, steps):
        for metric, _ in discovered.metrics.values():
            found |= {id(variable): variable for variable in metric.variables}
    return list(found.values())


def _tell_if_never_updated(values: Mapping[str, Any]) -> None:
    """Says once that an epoch's value is 0 because the step, with these `values`, does not update its metric."""
    for name, value in values.items():
        if np.any(value != 0):
            messages.say_once(
                f"the step returns {name!r}, and does not update the model's metric of that name. As in Keras, the "
                "value of the epoch is the metric's, which is 0. Update it, or return another name.",
                key=f"explain {name}",
            )
