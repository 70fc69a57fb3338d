"""`StepContext`: everything that a step uses; made once, by `build_context`."""

import dataclasses
import functools

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.training.step import objective as objective_lib
from tfdist.training.step import timing
from tfdist.training.step.updates import stages
from tfdist.training.step.updates.all_reduce import AllReduce
from tfdist.training.step.updates.loss_scale import LossScale


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The objects and variables that a training step and an evaluation step use."""

    cluster: Cluster
    config: config_lib.Config
    objective: objective_lib.Objective
    optimizer: keras.optimizers.Optimizer
    # Float variables that each replica updates from its own examples, such as moving averages.
    statistics: tuple[keras.Variable, ...]
    # None except in float16.
    loss_scale: LossScale | None
    # Sums gradients over replicas: a part of an update.
    reduction: AllReduce
    # Clips and applies summed gradients; the last part of an update.
    apply: stages.Apply
    # Steps so far, int64 []: random numbers depend on it.
    step_count: keras.Variable
    # Totals since the execution started, per replica: adding to them needs no communication. The two counts of steps
    # are divided by the number of replicas, so that the sum over replicas is the count.
    totals: tf.Variable
    # Whether a step whose loss or gradients are not finite makes no update.
    skips_nonfinite: bool = False
    # The stage of an update that sums gradients over replicas; None: the stage that calls `reduction`.
    reduce_stage: stages.Stage | None = None

    def make_update(self) -> stages.NextStage:
        """Chains the stages of the update of a step, from this replica's gradients to the weights."""
        return stages.make_update(
            self.apply,
            self.reduce_stage or functools.partial(stages.reduce_gradients, self.reduction),
            skips_nonfinite=self.skips_nonfinite,
            loss_scale=self.loss_scale,
            step_count=self.step_count,
        )

    @property
    def model(self) -> keras.Model:
        return self.objective.model

    @property
    def names(self) -> tuple[str, ...]:
        return self.objective.names

    @property
    def names_of_totals(self) -> tuple[str, ...]:
        return (*self.names, *objective_lib.COUNTS)

    @property
    def names_of_execution(self) -> tuple[str, ...]:
        """The names of an execution's results: those of `totals`, and measurements."""
        return (*self.names_of_totals, *objective_lib.MEASUREMENTS)

    @property
    def times_steps(self) -> bool:
        return self.reduction.clock is not timing.no_timestamp
