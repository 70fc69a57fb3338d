"""The objective of a script: the steps of its model, Keras' or the user's, under the view of `global_view.py`."""

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.own_step import discover
from tfdist.keras_fit.own_step.discover import Discovered
from tfdist.keras_fit.whole_batch import attributes, global_view, own_rows
from tfdist.keras_fit.whole_batch import rows as rows_lib
from tfdist.keras_fit.whole_batch.global_view import GlobalView
from tfdist.keras_fit.whole_batch.rows import Element
from tfdist.training import api as trainer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnStepObjective(trainer.Objective):
    """The values that a user's steps report; see `training.step.objective.Objective`."""

    model: keras.Model
    cluster: Cluster
    # "train", "test" or both -> the step.
    steps: dict[str, Discovered]
    # The last step's numbers by kind, float64 [numbers]: each replica has those of the global batch.
    last_numbers: dict[str, keras.Variable]
    metric_variables: tuple[keras.Variable, ...]
    # The graph that is traced, and the attributes of the user's objects before its trace began; [] before the first.
    first_attributes: list[Any] = dataclasses.field(default_factory=list)
    # Updates of metrics by the steps that are not yet added to the variables of the metrics.
    pending: own_rows.Pending

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sums of a step: the loss, to find non-finite values, and the examples of training steps."""
        return ("loss", "trained")

    def evaluate(self, shard: Element) -> tf.Tensor:
        """Runs the user's `test_step` on a replica's shard; returns sums as in `ShardResult`."""
        trainer.begin_evaluation_pass()
        return self.run_step("test", shard)

    @tf.autograph.experimental.do_not_convert
    def run_step(self, kind: str, shard: Element, average: global_view.Average | None = None) -> tf.Tensor:
        """Runs a user's step on a replica's shard; called in `strategy.run`.

        Args:
            kind: "train" or "test".
            average: see `GlobalView`.

        Returns:
            Sums as in `ShardResult`.
        """
        discovered = self.steps[kind]
        objects = self._objects_of_replica()
        rows = rows_lib.rows_of(shard, discovered.plan.examples)
        xla = bool(self.model.jit_compile)
        view = GlobalView(rows=rows, plan=discovered.plan, average=average, xla=xla, objects=objects)
        with (
            # Summaries have the same names as in Keras, without the name of the loop over steps.
            tf.compat.v1.name_scope(None),
            trainer.shard_present(rows.present),
            trainer.convert_in_fixed_order(),
            global_view.tracing_step(self._views_batch, view),
        ):
            (data,) = shard["data"]
            try:
                values = discovered.function(view.whole_batch(data) if self._views_batch else data)
            except Exception as error:
                if "`merge_call` called while defining a new graph" not in str(error):
                    raise
                raise ValueError(
                    f"{type(self.model).__name__}.{kind}_step assigns a variable in a branch or a loop of the graph, "
                    "where replicas cannot communicate. Choose the value by tf.where, and assign it outside of the "
                    f"branch. {error}"
                ) from None
            numbers = [tf.cast(one, tf.float64) for one in discover.scalars(values, discovered.numbers)]
            names = [name for name in (*discovered.numbers, *discovered.metrics) if "loss" in name]
            losses = [*view.parts_of_losses(), *discover.scalars(values, names)]
            losses = [tf.cast(one, tf.float64) for one in losses]
            view.finish()
        self.pending.add(view.added)
        if discovered.numbers:
            self.last_numbers[kind].assign(tf.stack(numbers))
        loss, count = tf.add_n([tf.zeros([], tf.float64), *losses]), tf.cast(rows.count, tf.float64)
        return tf.stack([loss * count, count if kind == "train" else tf.zeros_like(count), count])

    def _objects_of_replica(self) -> list[Any]:
        """Returns the user's objects whose attributes each replica of this process has for itself.

        Sets these attributes to what the first of these replicas has found. [] if each process has one replica.
        """
        if self.cluster.num_replicas == self.cluster.num_workers:
            return []
        objects, graph = attributes.objects_of(self.model), tf.compat.v1.get_default_graph()
        if self.first_attributes[:1] != [graph]:
            self.first_attributes[:] = [graph, attributes.Attributes(objects)]
        self.first_attributes[1].restore()
        return objects

    @property
    def _views_batch(self) -> bool:
        """Whether steps are traced under the global view: for several replicas, XLA, or tables with dense gradients."""
        sums_rows = any(getattr(one, "dense_gradient", False) for one in self.model.variables)
        return self.cluster.num_replicas > 1 or sums_rows or bool(self.model.jit_compile)

    def flush(self) -> None:
        """Adds to the metrics what the steps have collected since the last call. Collective."""
        if self._views_batch:
            self.pending.flush()

    def reset(self) -> None:
        self.flush()
        self.model.reset_metrics()

    def variables(self) -> list[keras.Variable]:
        return [*self._state_variables, self.pending.numbers]

    def state(self) -> list[Any]:
        """Returns the metrics' variables, and the last numbers, as JSON values. Collective."""
        self.flush()
        return [keras.ops.convert_to_numpy(one).tolist() for one in self._state_variables]

    def restore_state(self, values: list[Any]) -> None:
        for variable, value in zip(self._state_variables, values, strict=True):
            variable.assign(value)

    @property
    def _state_variables(self) -> list[keras.Variable]:
        return [*self.metric_variables, *(one for one in self.last_numbers.values() if one.shape[0])]

    def finalise_weights(self) -> None:
        """Assigns the averages of an optimizer with `use_ema` to the weights; called in `strategy.scope`."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def results(self, totals: dict[str, float]) -> dict[str, Any]:
        """Returns Keras' logs after the last step. A collective: every worker must call it."""
        self.flush()
        kind = "train" if totals["trained"] > 0 else "test"
        discovered = self.steps[kind]
        numbers = keras.ops.convert_to_numpy(self.last_numbers[kind]).tolist()
        logs = dict(zip(discovered.numbers, numbers, strict=True))
        for name, (metric, key) in discovered.metrics.items():
            result = metric.result() if key is None else compiled_model.flatten_results(metric.result())[key]
            logs[name] = compiled_model.to_log_value(result)
        # As in Keras: the order of the model's metrics if all are metrics, else that of tf.function.
        of_metrics = discovered.metrics.items()
        ordered = [name for metric in self.model.metrics for name, (source, _) in of_metrics if source is metric]
        return {name: logs[name] for name in (ordered if set(ordered) == set(logs) else discovered.names)}

    def epoch_logs(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns an epoch's logs as Keras does: the model's metrics if the step reports the same names, else `logs`.

        A collective: every worker must call it.
        """
        found = compiled_model.flatten_results(self.model.get_metrics_result())
        if set(found) != set(logs):
            return logs
        return {name: compiled_model.to_log_value(found[name]) for name in logs}


def train_step(context: trainer.StepContext, shard: Element) -> tf.Tensor:
    """Runs the model's `train_step` on this replica's shard, in `strategy.run`; returns `ShardResult.sums`."""
    objective = context.objective
    statistics = [(statistic, tf.convert_to_tensor(statistic.value)) for statistic in context.statistics]
    fraction = shard["count"] / shard["total"]
    owners = {id(one): optimizer for optimizer, variables in objective.steps["train"].optimizers for one in variables}

    def average(gradients: list[Any], variables: list[Any]) -> list[Any]:
        optimizer = next((owners[id(one)] for one in variables if id(one) in owners), context.optimizer)
        owner = getattr(optimizer, "inner_optimizer", optimizer)
        gradients, looked_up = global_view.of_step().count_lookups_once(gradients, variables)
        gradients = trainer.select_rows(gradients, variables, [shard["data"], *looked_up], owner)
        gradients = trainer.scale_gradients(gradients, 1 / context.cluster.num_replicas)
        return context.reduction(gradients, [], [], fraction)[0]

    trainer.begin_forward_pass(0)
    sums = objective.run_step("train", shard, average)
    context.reduction([], [], statistics, fraction)
    if context.step_count is not trainer.step_count(context.optimizer):
        context.step_count.assign_add(1)
    trainer.add_to_totals(context, sums, None)
    return trainer.after_update(context, sums)
