"""The chief of training with parameter servers: sends batches to workers, which do not wait for each other."""

import collections
import dataclasses
import functools
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
from tfdist.configs.laboratory.parameter_server import tasks
from tfdist.training import checkpointing, loop, opening, setup
from tfdist.training import run as run_lib
from tfdist.training.execution import StopRequested
from tfdist.training.features import nonfinite
from tfdist.training.loop_services import LoopServices
from tfdist.training.reporting import ending
from tfdist.training.state import TrainingState
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.updates import stages

# How many batches may be scheduled for each worker.
_SCHEDULED = 3


@dataclasses.dataclass(slots=True, kw_only=True)
class RemoteModel:
    """The weights on the parameter servers, and how workers update them."""

    coordinator: Any
    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    # Schedules the update of a batch on any worker; returns a future of the sums over its examples.
    schedule: Callable[[dict[str, tf.Tensor]], Any]
    workers: int
    progress: tasks.Progress


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
        config: of the run.
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
    opening.check_same_config(run, allow_config_changes)
    if opening.read_finished(run) is not None:
        print("This run is already finished; nothing to do.")
        return 0
    services, state = opening.open_run(run)
    record_loss = functools.partial(services.ledger.note_end, "lost")
    with ending.record_end(services):
        try:
            with tasks.exit_when_lost(mine, config.cluster, record_loss) as progress:
                _train(services, state, _make_remote_model(run, strategy, coordinator, mine, progress))
        except StopRequested:
            checkpointing.save_stopped(services, state)
            return interruption.EXIT_STOPPED
        checkpointing.wait_until_saved(services, state)
        checkpointing.mark_finished(services, state)
        return 0


def _make_remote_model(
    run: run_lib.Run, strategy: Any, coordinator: Any, mine: tasks.TaskSpec, progress: tasks.Progress
) -> RemoteModel:
    config = run.config
    with strategy.scope():
        model = specs.build(config.model, field="config.model")
        optimizer = optimizer_lib.build_optimizer(config, run.steps_per_epoch, run.total_steps)
        optimizer.build(model.trainable_variables)
    objective = dataclasses.replace(run.objective, model=model)
    apply = stages.make_apply(config.train, run.cluster, model, optimizer)

    def update(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        sums, gradients = objective.micro_batch(batch, tf.constant(0), 1.0)
        apply(gradients)
        return sums

    compiled = tf.function(lambda batch: strategy.run(update, args=(batch,)), autograph=False)
    return RemoteModel(
        coordinator=coordinator,
        model=model,
        optimizer=optimizer,
        schedule=lambda batch: coordinator.schedule(compiled, args=(batch,)),
        workers=len(mine.addresses["worker"]),
        progress=progress,
    )


def _train(services: LoopServices, state: TrainingState, remote: RemoteModel) -> None:
    """Runs the updates after `state.step`.

    Raises:
        StopRequested: the chief received a stop request before the last update.
    """
    run = services.run
    _copy(run.variables, _variables(remote))
    loop.run_due_actions(services, state)
    batches = iter(run.feed.training(state.step, run.total_steps))
    while state.step < run.total_steps:
        if run.stop.reason is not None:
            raise StopRequested
        started, first = time.perf_counter(), state.step
        with remote.progress.watch():
            sums = _updates(services, state, remote, batches)
        services.ledger.step = state.step
        if not all(math.isfinite(value) for value in sums):
            text = f"The loss is {sums[0]} in updates {first + 1} to {state.step}"
            raise nonfinite.make_diverged_error(services, text, (first + 1, state.step))
        _copy(_variables(remote), run.variables)
        run.context.optimizer.iterations.assign(state.step)  # Simultaneous updates may be counted once.
        totals = dict(zip((*run.context.names, "examples"), sums, strict=True)) | {"wait_seconds": 0.0, "seconds": 1.0}
        state.add(totals, state.step - first, time.perf_counter() - started)
        loop.report_if_due(services, state)
        loop.run_due_actions(services, state)


def _updates(
    services: LoopServices,
    state: TrainingState,
    remote: RemoteModel,
    batches: Iterator[dict[str, tf.Tensor]],
) -> list[float]:
    """Runs the updates up to the next step at which an action is due; returns the sums over their examples."""
    due = loop.next_due_step(services, state.step)
    scheduled: collections.deque = collections.deque()
    sums = np.zeros(len(services.run.context.names) + 1)
    while state.step < due and (services.run.stop.reason is None or not scheduled):
        scheduled.append(remote.schedule(next(batches)))
        state.step += 1
        if len(scheduled) > _SCHEDULED * remote.workers:
            sums += scheduled.popleft().fetch()
            remote.progress.note_update()
    for future in scheduled:
        sums += future.fetch()
        remote.progress.note_update()
    remote.coordinator.join()
    return sums.tolist()


def _variables(remote: RemoteModel) -> dict[str, keras.Variable]:
    return checkpoint_format.named_variables(remote.model, remote.optimizer, {})


def _copy(sources: dict[str, Any], targets: dict[str, Any]) -> None:
    # Both have the same structure and order; Keras may have numbered their names differently.
    for source, target in zip(sources.values(), targets.values(), strict=True):
        target.assign(keras.ops.convert_to_numpy(source))
