"""The chief of training with parameter servers: distributes batches, whose updates are not synchronised."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.config import specs
from tfdist.tools.parameter_server import tasks
from tfdist.training import checkpointing, nonfinite, setup, state, triggers
from tfdist.training import loop as loop_lib
from tfdist.training import run as run_lib
from tfdist.training.step import context, train_step
from tfdist.training.step import optimizer as optimizer_lib

# Scheduled batches for each worker.
_SCHEDULED = 3


@dataclasses.dataclass(slots=True, kw_only=True)
class RemoteModel:
    """The weights on the parameter servers, and how workers update them."""

    coordinator: Any
    trainer: context.StepContext
    # Schedules the update of a batch on any worker; returns the future sums over its examples.
    schedule: Callable[[dict[str, tf.Tensor]], Any]
    workers: int


def train(
    config: config_lib.Config,
    workdir: Path,
    mine: tasks.TaskSpec,
    strategy: Any,
    coordinator: Any,
    *,
    allow_config_changes: bool,
) -> int:
    """Trains as the chief: reads the data, schedules the updates, evaluates, saves and reports.

    Args:
        config: of the run; `train.asynchronous` is True.
        workdir: of the run.
        mine: the chief's task.
        strategy: the ParameterServerStrategy of `tasks.connect`.
        coordinator: its ClusterCoordinator.
        allow_config_changes: resume even if the saved config differs.

    Returns:
        The exit code. The process exits with 76 if a worker or parameter server is lost.

    Raises:
        ValueError: the config cannot be used.
        DivergedError: the loss is non-finite.
        OSError: the last checkpoint could not be written.
    """
    run = setup.build_run(config, workdir)
    checkpointing.check_same_config(run, allow_config_changes)
    if checkpointing.is_finished(run):
        print("This run is already finished; nothing to do.")
        return 0
    loop, progress = checkpointing.open_loop(run)
    try:
        with tasks.exit_when_lost(mine):
            remote = _make_remote_model(run, strategy, coordinator, len(mine.addresses["worker"]))
            finished = _train(loop, progress, remote)
        checkpointing.await_saved(loop, progress)
        if finished:
            checkpointing.finish(loop, progress)
            return 0
        loop.report.event(f"stopped by {run.stop.reason} and saved", progress.step)
        return interruption.EXIT_STOPPED
    finally:
        checkpointing.close(loop)


def _make_remote_model(run: run_lib.Run, strategy: Any, coordinator: Any, workers: int) -> RemoteModel:
    config = run.config
    with strategy.scope():
        model = specs.build(config.model, field="config.model")
        optimizer = optimizer_lib.build_optimizer(config, run.steps_per_epoch, run.total_steps)
        optimizer.build(model.trainable_variables)
    trainer = dataclasses.replace(run.trainer, model=model, optimizer=optimizer, statistics=())

    def update(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        sums, gradients = train_step.forward_backward(trainer, batch, tf.constant(0))
        train_step.apply(trainer, gradients)
        return sums

    compiled = tf.function(lambda batch: strategy.run(update, args=(batch,)), autograph=False)
    return RemoteModel(
        coordinator=coordinator,
        trainer=trainer,
        schedule=lambda batch: coordinator.schedule(compiled, args=(batch,)),
        workers=workers,
    )


def _train(loop: state.LoopTools, progress: state.TrainingState, remote: RemoteModel) -> bool:
    """Runs the updates from `progress` on; returns False if the chief received a stop request before the last."""
    run = loop.run
    _copy(run.variables, _variables(remote))
    if not loop_lib.run_due_actions(loop, progress):
        return False
    batches = iter(setup.training_dataset(run, first_step=progress.step, last_step=run.total_steps))
    while progress.step < run.total_steps:
        if run.stop.reason is not None:
            return loop_lib.save_and_stop(loop, progress)
        started, first = time.perf_counter(), progress.step
        sums = _updates(loop, progress, remote, batches)
        if not all(math.isfinite(value) for value in sums):
            raise nonfinite.diverged(loop, f"The loss is {sums[0]} in updates {first + 1} to {progress.step}")
        _copy(_variables(remote), run.variables)
        run.trainer.optimizer.iterations.assign(progress.step)  # Simultaneous updates may be counted once.
        totals = dict(zip((*run.trainer.names, "examples"), sums, strict=True)) | {"wait_seconds": 0.0, "seconds": 1.0}
        loop_lib.accumulate_totals(progress, totals, progress.step - first, time.perf_counter() - started)
        if triggers.is_due(run.config.report.every, progress.step, run.steps_per_epoch):
            loop_lib.report_interval(loop, progress)
        if not loop_lib.run_due_actions(loop, progress):
            return False
    return True


def _updates(
    loop: state.LoopTools,
    progress: state.TrainingState,
    remote: RemoteModel,
    batches: Iterator[dict[str, tf.Tensor]],
) -> list[float]:
    """Runs the updates up to the next step at which an action is due; returns the sums over their examples."""
    due = loop_lib.next_due_step(loop, progress.step)
    scheduled: collections.deque = collections.deque()
    sums = np.zeros(len(loop.run.trainer.names) + 1)
    while progress.step < due and (loop.run.stop.reason is None or not scheduled):
        scheduled.append(remote.schedule(next(batches)))
        progress.step += 1
        if len(scheduled) > _SCHEDULED * remote.workers:
            sums += scheduled.popleft().fetch()
    for future in scheduled:
        sums += future.fetch()
    remote.coordinator.join()
    return sums.tolist()


def _variables(remote: RemoteModel) -> dict[str, keras.Variable]:
    return checkpoint_format.named_variables(remote.trainer.model, remote.trainer.optimizer, {})


def _copy(sources: dict[str, Any], targets: dict[str, Any]) -> None:
    # Both have the same structure and order; Keras may have numbered their names differently.
    for source, target in zip(sources.values(), targets.values(), strict=True):
        target.assign(keras.ops.convert_to_numpy(source))
