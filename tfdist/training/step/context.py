"""`StepContext`: everything that a step uses, made once in `strategy.scope`."""

import dataclasses
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.devices.replicas import Replicas
from tfdist.training.step import gradients, micro_batches, timing
from tfdist.training.step import loss_scale as loss_scale_lib
from tfdist.training.step import objective as objective_lib
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.normalization import activity_penalties, spanning_groups, synchronized_norm
from tfdist.training.step.updates import fused_updates, work_sharing


@dataclasses.dataclass(frozen=True, slots=True)
class TotalsLayout:
    """Names the elements of a float64 vector of totals, which is summed over replicas as one tensor."""

    fields: tuple[str, ...]

    def get(self, vector: tf.Tensor, field: str) -> tf.Tensor:
        """Returns the element `field` of `vector` (float64 [len(fields)]): float64 []."""
        return vector[self.fields.index(field)]

    def to_dict(self, vector: tf.Tensor) -> dict[str, float]:
        """Returns the elements by name, in Python."""
        return dict(zip(self.fields, vector.numpy().tolist(), strict=True))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The objects and variables that a training step and an evaluation step use."""

    cluster: Replicas
    config: config_lib.Config
    objective: objective_lib.Objective
    optimizer: keras.optimizers.Optimizer
    # Float variables that each replica updates from its own examples, such as moving averages.
    statistics: tuple[keras.Variable, ...]
    # Clips summed gradients; without `config.train.clip_norm` it returns them unchanged.
    clip: Callable[[gradients.Gradients], gradients.Gradients]
    # None except in float16.
    loss_scale: loss_scale_lib.LossScale | None
    # Of the gradients' all-reduce; `bytes_per_pack` is set.
    communication_options: config_lib.Communication
    # Steps so far, int64 []: random numbers depend on it.
    step_count: keras.Variable
    # Totals since the execution started, per replica: adding to them needs no communication. The two counts of steps
    # are divided by the number of replicas, so that the sum over replicas is the count.
    totals: tf.Variable
    # Seconds of communication since the execution started, per replica; see timing.py.
    communication: tf.Variable
    # Returns the time at which tensors are computed; see timing.py.
    clock: timing.Clock

    @property
    def model(self) -> keras.Model:
        """The model that is trained."""
        return self.objective.model

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the objective's values."""
        return self.objective.names

    @property
    def totals_layout(self) -> TotalsLayout:
        """The layout of `totals`."""
        return TotalsLayout((*self.names, *objective_lib.COUNTS))

    @property
    def execution_layout(self) -> TotalsLayout:
        """The layout of what an execution returns: `totals`, and what was measured."""
        return TotalsLayout((*self.names, *objective_lib.COUNTS, *objective_lib.MEASUREMENTS))

    @property
    def times_steps(self) -> bool:
        """Whether each step is timed."""
        return self.clock is not timing.no_timestamp

    @property
    def skips_nonfinite(self) -> bool:
        """Whether a step whose loss or gradients are non-finite is skipped on the devices."""
        return self.config.train.nonfinite != "stop"


def build_objective(
    cluster: Replicas,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    function: objective_lib.ObjectiveFunction,
    element_spec: dict[str, tf.TensorSpec],
) -> objective_lib.PerExampleObjective:
    """Makes the objective of a config, and checks that its function returns one value per example.

    Args:
        optimizer: the optimizer that will apply the gradients.
        element_spec: shapes and dtypes of a batch; one of two blank examples is run through the function, which also
            builds a subclassed model.

    Raises:
        ValueError: the function returns something other than one value per example, or no "loss"; XLA cannot compile
            the model; or its groups do not fit the batch.
    """
    synchronised = any(getattr(layer, "synchronized", False) for layer in model._flatten_layers())
    spanning = spanning_groups.install(model, config, cluster.num_replicas)
    if config.train.xla and (synchronised or spanning):
        raise ValueError(
            "config.train.xla=True compiles no communication, and the model normalises over the batches of several "
            "replicas: set xla to False, or take statistics over groups that divide a replica's batch (docs/guide.md)."
        )
    with cluster.scope():
        blank = {name: tf.zeros([2, *spec.shape[1:]], spec.dtype) for name, spec in element_spec.items()}
        names = objective_lib.check_values(function(model, blank, training=False), num_examples=2)
        if model.losses:
            names = (*names, "regularization")
    return objective_lib.PerExampleObjective(
        model=model,
        optimizer=optimizer,
        function=function,
        names=names,
        global_batch=config.data.batch_size,
        micro_batches=config.train.micro_batches,
        accumulate=micro_batches.unrolled if synchronised else micro_batches.in_loop,
        xla=config.train.xla,
    )


def build_context(
    cluster: Replicas,
    config: config_lib.Config,
    objective: objective_lib.Objective,
    optimizer: keras.optimizers.Optimizer,
    *,
    slots: bool = True,
) -> StepContext:
    """Makes the variables of a step, and prepares the optimizer for gradients that are summed already.

    Args:
        slots: whether to make the optimizer's slots; an evaluation needs none.
    """
    model = objective.model
    activity_penalties.check(model, cluster.num_replicas)
    optimizer_lib.take_over_reduction(optimizer)
    fused_updates.fuse(optimizer)
    synchronized_norm.make_exact(model)
    if config.train.local_steps == 1:  # Otherwise each replica has other gradients.
        work_sharing.share(optimizer, cluster)
    found = tuple(statistics(model))
    with cluster.scope():
        if slots:
            optimizer.build(model.trainable_variables)
        totals = tf.Variable(
            tf.zeros([len(objective.names) + len(objective_lib.COUNTS)], tf.float64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        communication = timing.make_counter()
        loss_scale = loss_scale_lib.LossScale.create() if config.train.precision == "float16" else None
    return StepContext(
        cluster=cluster,
        config=config,
        objective=objective,
        optimizer=optimizer,
        statistics=found,
        clip=work_sharing.make_clip(config.train.clip_norm, cluster, equal=config.train.local_steps == 1),
        loss_scale=loss_scale,
        step_count=optimizer_lib.step_count(optimizer),
        communication_options=gradients.with_pack_size(config.communication, cluster.implementation),
        totals=totals,
        communication=communication,
        clock=timing.choose_clock(config.report.step_times, cluster.device_type),
    )


def statistics(model: keras.Model, *, frozen: bool = False) -> list[keras.Variable]:
    """Returns the float variables that layers made non-trainable, such as moving averages.

    Args:
        frozen: whether to include those of frozen layers, which change only if the user's code assigns them.
    """
    return [
        variable
        for layer in model._flatten_layers()
        if layer.trainable or frozen
        for variable in layer._non_trainable_variables
        if keras.backend.is_float_dtype(variable.dtype)
    ]
