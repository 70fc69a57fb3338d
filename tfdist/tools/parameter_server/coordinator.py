"""The chief's side of training with parameter servers: batches are handed out, and updates wait for nobody.

Used by `tfdist.tools.parameter_server`, and by `tfdist.main` where TF_CONFIG names servers.
"""

import collections
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.config import specs
from tfdist.tools.parameter_server import servers
from tfdist.training import checkpointing, nonfinite, setup, state, triggers
from tfdist.training import loop as loop_lib
from tfdist.training import run as run_lib
from tfdist.training.step import context, train_step
from tfdist.training.step import optimizer as optimizer_lib

# Batches that are handed out ahead, for each worker.
_AHEAD = 3


@dataclasses.dataclass(slots=True, kw_only=True)
class RemoteModel:
    """The weights on the parameter servers, and the workers that update them."""

    coordinator: Any
    trainer: context.StepContext
    # Hands a batch to any worker; returns a promise of the sums over its examples.
    hand_out: Callable[[dict[str, tf.Tensor]], Any]
    workers: int


def run_asynchronously(
    config: config_lib.Config,
    workdir: Path,
    *,
    allow_config_changes: bool = False,
    watch: Callable[[Callable[[str], None]], None] = lambda say: None,
) -> int:
    """Trains as chief, or serves one, as TF_CONFIG says.

    Args:
        watch: called between batches with what tells the user something.

    Returns:
        The exit code.

    Raises:
        ValueError: TF_CONFIG does not say who takes part, or the config cannot be used.
        TimeoutError: workers or servers are missing.
        DivergedError: the loss is no longer finite.
        OSError: the last checkpoint could not be written.
    """
    mine = servers.task_spec(os.environ)
    if mine.kind != "chief":
        servers.serve(mine)
    strategy, coordinator = servers.connect(mine, config.cluster.connect_seconds, lambda: watch(print))
    run = setup.build_run(config, workdir)
    checkpointing.check_same_config(run, allow_config_changes)
    if checkpointing.is_finished(run):
        print("This run is finished; nothing is changed.")
        return 0
    loop, progress = checkpointing.open_loop(run)
    remote = _make_remote_model(run, strategy, coordinator, len(mine.addresses["worker"]))
    try:
        finished = _train(loop, progress, remote, watch)
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
        hand_out=lambda batch: coordinator.schedule(compiled, args=(batch,)),
        workers=workers,
    )


def _train(
    loop: state.LoopTools,
    progress: state.TrainingState,
    remote: RemoteModel,
    watch: Callable[[Callable[[str], None]], None],
) -> bool:
    """Runs the updates from `progress` on; returns False where the chief was asked to stop before the last."""
    run = loop.run
    _copy(run.variables, _variables(remote))
    if not loop_lib.run_due_actions(loop, progress):
        return False
    batches = iter(setup.training_dataset(run, first_step=progress.step, last_step=run.total_steps))
    while progress.step < run.total_steps:
        if run.stop.reason is not None:
            return loop_lib.save_and_stop(loop, progress)
        started, first = time.perf_counter(), progress.step
        sums = _updates(loop, progress, remote, batches, watch)
        if not all(math.isfinite(value) for value in sums):
            raise nonfinite.diverged(loop, f"The loss is {sums[0]} in updates {first + 1} to {progress.step}")
        _copy(_variables(remote), run.variables)
        run.trainer.optimizer.iterations.assign(progress.step)  # Updates at the same moment may count as one.
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
    watch: Callable[[Callable[[str], None]], None],
) -> list[float]:
    """Hands out the batches up to the next step at which something is due; returns the sums over their examples."""
    due = loop_lib.next_due_step(loop, progress.step)
    promised: collections.deque = collections.deque()
    sums = [0.0] * (len(loop.run.trainer.names) + 1)

    def take() -> None:
        try:
            values = promised.popleft().fetch().tolist()
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            return  # The update was made; the worker that knew its sums died before it was asked for them.
        except tf.errors.InvalidArgumentError as error:
            if "remote_handle" in str(error):  # And so it is where it has been started again meanwhile.
                return
            raise
        for index, value in enumerate(values):
            sums[index] += value

    while progress.step < due and (loop.run.stop.reason is None or not promised):
        promised.append(remote.hand_out(next(batches)))
        progress.step += 1
        watch(loop.report.event)
        if len(promised) > _AHEAD * remote.workers:
            take()
    while promised:
        watch(loop.report.event)
        take()
    remote.coordinator.join()
    return sums


def _variables(remote: RemoteModel) -> dict[str, keras.Variable]:
    return checkpoint_format.named_variables(remote.trainer.model, remote.trainer.optimizer, {})


def _copy(sources: dict[str, Any], targets: dict[str, Any]) -> None:
    # Of equal structure, and made in the same order; names may have been counted on.
    for source, target in zip(sources.values(), targets.values(), strict=True):
        target.assign(keras.ops.convert_to_numpy(source))
