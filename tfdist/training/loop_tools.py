"""`LoopTools`: what the loop works with, made once per start."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.async_writer import AsyncCheckpointer
from tfdist.report import reporter as reporter_lib
from tfdist.report.reporter import Reporter
from tfdist.training import execution, replica_consistency, tensorboard_extras
from tfdist.training import run as run_lib
from tfdist.training.execution import StepRunner
from tfdist.training.replica_consistency import ReplicaConsistencyCheck
from tfdist.training.step import local_sgd, train_step
from tfdist.training.tensorboard_extras import TensorBoardExtras


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopTools:
    """What the loop works with."""

    run: run_lib.Run
    report: Reporter
    # None except on the chief.
    checkpointer: AsyncCheckpointer | None
    train_steps: StepRunner
    evaluation_steps: StepRunner
    # Returns whether all variables are finite; the same on every worker.
    is_finite: Callable[[], bool]
    consistency: ReplicaConsistencyCheck
    tensorboard: TensorBoardExtras


def make_tools(run: run_lib.Run, report: Reporter, checkpointer: AsyncCheckpointer | None) -> LoopTools:
    """Makes the tools of the loop."""
    return LoopTools(
        run=run,
        report=report,
        checkpointer=checkpointer,
        train_steps=execution.make_runner(run, local_sgd.choose_step(run.config.train)),
        evaluation_steps=execution.make_runner(run, train_step.evaluation_step),
        is_finite=finite_check(run.variables),
        consistency=replica_consistency.make_check(run.cluster, run.variables),
        tensorboard=tensorboard_extras.TensorBoardExtras(run=run, report=report),
    )


def finite_check(variables: Mapping[str, Any]) -> Callable[[], bool]:
    """Compiles a function that returns whether all floating-point variables are free of infinities and NaN."""
    values = map(checkpoint_format.tf_variable, variables.values())
    floats = [value for value in values if value.dtype.is_floating]

    @tf.function(autograph=False)
    def check() -> tf.Tensor:
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in floats])

    return lambda: bool(check())


def make_silent_tools(run: run_lib.Run) -> LoopTools:
    """Makes tools that report nothing, for an evaluation whose values are returned to the caller."""
    report = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        global_batch=run.batch_size,
        console=None,
    )
    return make_tools(run, report, None)


def open_report(run: run_lib.Run, workdir: str | None, **resumed: int) -> Reporter:
    """Opens the report of `run`; see `reporter.open_report` for `workdir` and `resumed`."""
    report = reporter_lib.open_report(
        workdir,
        chief=run.cluster.is_chief,
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        total_steps=run.total_steps,
        steps_per_epoch=run.steps_per_epoch,
        global_batch=run.batch_size,
        tensorboard=run.config.report.tensorboard,
        console=run.callbacks.console,
        **resumed,
    )
    report.workers(list(run.cluster.roster))
    for note in run.notes if run.cluster.is_chief else ():
        report.warning(note)
    return report
