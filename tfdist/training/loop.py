"""The loop, and the evaluation beside it."""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.cluster import interruption
from tfdist.cluster.liveness import peer_loss
from tfdist.training import checkpointing, evaluate, nonfinite, replica_consistency, setup, state, triggers
from tfdist.training import run as run_lib
from tfdist.training.checkpointing import FINISHED
from tfdist.training.state import LoopTools, TrainingState
from tfdist.training.step import multi_step


def train(run: run_lib.Run, *, allow_config_changes: bool = False) -> int:
    """Trains from the newest checkpoint, or from the start, to the end.

    Returns:
        0 when the run is finished; `interruption.EXIT_STOPPED` when it was asked to stop, and is saved.

    Raises:
        ValueError: the workdir holds a run of another config.
        DivergedError: the loss or the weights are no longer finite; the last good checkpoint is kept.
        DisagreementError: the replicas do not hold the same state, or the workers do not read the same examples.
    """
    checkpointing.check_same_config(run, allow_config_changes)
    if run.compiled is None and run.cluster.broadcast(checkpointing.is_finished(run)):
        if run.cluster.is_chief:
            print(f"This run is finished; nothing is changed. {(run.workdir / FINISHED).read_text().strip()}")
        return 0
    if run.cluster.any_worker(run.stop.reason is not None):
        if run.cluster.is_chief:
            print(f"stopped by {run.stop.reason or 'another worker'} before a step was made: there is nothing to save")
        return interruption.EXIT_STOPPED
    loop, progress = checkpointing.open_loop(run)
    try:
        replica_consistency.check_start(run.cluster, run.examples, dataclasses.asdict(progress))
        loop.agreement.check(progress.step)
        finished = train_loop(loop, progress)
        checkpointing.await_saved(loop, progress)
        if not finished:
            loop.report.event(f"stopped by {run.stop.reason or 'another worker'} and saved", progress.step)
            return interruption.EXIT_STOPPED
        if run.compiled is not None:
            with run.cluster.scope():
                run.compiled.finish()
        run.callbacks.train_end(progress.logs)
        if run.cluster.is_chief and not run.callbacks.stopped_on_nan:
            checkpointing.finish(loop, progress)
        return 0
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        peer_loss.claim_exit()  # To find the example may take longer than the other workers last.
        raise damaged_data(run) or error from None
    finally:
        checkpointing.close(loop)


def train_loop(loop: LoopTools, progress: TrainingState) -> bool:
    """Runs the steps from `progress` on; returns False where the workers agreed to stop before the last."""
    run, total_steps = loop.run, loop.run.total_steps
    iterator = open_stream(run, progress.step)
    loop.report.progress(progress.step, "compiling")
    if not run_due_actions(loop, progress):  # What was due when the run was interrupted.
        return False
    while progress.step < total_steps and not run.callbacks.stop():
        begin_execution(run, progress)
        first_step, started = progress.step + 1, time.perf_counter()
        steps, totals = loop.train_call(iterator, next_due_step(loop, progress.step) - progress.step)
        progress.step += steps
        run.cluster.heartbeat(progress.step)
        if nonfinite.handle_nonfinite(loop, progress, first_step, totals):
            iterator = open_stream(run, progress.step)
        else:
            accumulate_totals(progress, totals, steps, time.perf_counter() - started)
            end_execution(run, progress)
            if triggers.is_due(run.config.report.every, progress.step, run.steps_per_epoch):
                report_interval(loop, progress)
        if not run_due_actions(loop, progress):
            return False
        if totals["stop"] > 0 and progress.step < total_steps:
            return save_and_stop(loop, progress)
        loop.report.progress(progress.step)
    return True


def save_and_stop(loop: LoopTools, progress: TrainingState) -> bool:
    """Begins to save the run where the workers have agreed to stop; returns False, as what calls it does."""
    loop.run.stop.saving = True
    checkpointing.save(loop, progress, regular=False)
    return False


def open_stream(run: run_lib.Run, step: int) -> Iterator[Any]:
    """Opens this worker's share of the steps after `step`."""
    return run.cluster.distribute(setup.training_dataset(run, first_step=step, last_step=run.total_steps))


def begin_execution(run: run_lib.Run, progress: TrainingState) -> None:
    """Tells the callbacks that an epoch or a call begins."""
    epoch, step_in_epoch = divmod(progress.step, run.steps_per_epoch)
    if step_in_epoch == 0:
        progress.epoch_totals, progress.logs = {}, {}
        if run.compiled is not None:
            run.compiled.reset()
        run.callbacks.call("on_epoch_begin", epoch)
    if run.callbacks.begins_batch("train", step_in_epoch):
        run.callbacks.call("on_train_batch_begin", step_in_epoch)


def end_execution(run: run_lib.Run, progress: TrainingState) -> None:
    """Tells the callbacks that a call has ended, and notes what the epoch has come to."""
    step_in_epoch = (progress.step - 1) % run.steps_per_epoch
    ends_epoch = step_in_epoch == run.steps_per_epoch - 1 or progress.step == run.total_steps
    ends_batch = run.callbacks.ends_batch("train", step_in_epoch, run.steps_per_epoch)
    if not (ends_epoch or ends_batch or run.callbacks.wants_progress("train") or run.callbacks.stopped_on_nan):
        return
    logs = evaluate.values(run, progress.epoch_totals)
    progress.logs = logs | {name: value for name, value in progress.logs.items() if name not in logs}
    if run.callbacks.wants_progress("train"):
        run.callbacks.progress(step_in_epoch + 1, logs)
    if ends_batch:
        last = run.callbacks.last_of_batch("train", step_in_epoch)
        run.callbacks.call("on_train_batch_end", last, logs)


def next_due_step(loop: LoopTools, now: int) -> int:
    """The next step at which something is due: a report, an evaluation, a checkpoint or the end."""
    run, config = loop.run, loop.run.config
    sections = (config.report, config.evaluation, config.agreement, config.checkpoint)
    due = (triggers.next_due(section.every, now, run.steps_per_epoch) for section in sections)
    in_epoch = now % run.steps_per_epoch
    if run.compiled is not None or run.callbacks.active:
        due = (*due, now - in_epoch + run.steps_per_epoch)
    if "train" in run.callbacks.batch_interval:
        steps = run.callbacks.batch_interval["train"]
        due = (*due, now - in_epoch % steps + steps)
    return min([run.total_steps, *loop.board.boundaries(now), *(step for step in due if step is not None)])


def run_due_actions(loop: LoopTools, progress: TrainingState) -> bool:
    """Evaluates and saves where that is due; returns False where a stop was agreed on meanwhile."""
    run, config, now = loop.run, loop.run.config, progress.step
    improved = False
    loop.board.look(now)
    if state.ends(run, now) or triggers.is_due(config.agreement.every, now, run.steps_per_epoch):
        loop.agreement.check(now)
    if evaluate.evaluation_is_due(run, now) and progress.evaluated < now:
        evaluated = evaluate.evaluate(loop, now, best=progress.best)
        if evaluated is None:
            return save_and_stop(loop, progress)
        progress.logs |= {f"val_{name}": value for name, value in evaluated.items()}
        improved = evaluate.is_best(config.checkpoint, evaluated, progress.best)
        if improved:
            progress.best, progress.best_step = evaluated[config.checkpoint.best_metric], now
        progress.evaluated = now
    if progress.epochs * run.steps_per_epoch < now and (now % run.steps_per_epoch == 0 or state.ends(run, now)):
        progress.epochs = math.ceil(now / run.steps_per_epoch)
        run.callbacks.call("on_epoch_end", progress.epochs - 1, progress.logs)
    if (improved or state.save_is_due(run, now)) and not run.callbacks.stopped_on_nan:
        checkpointing.save(loop, progress, regular=True)
    if improved and loop.saver is not None:
        loop.saver.mark_best(now, config.checkpoint.best_metric, progress.best)
    return True


def accumulate_totals(progress: TrainingState, totals: dict[str, float], steps: int, seconds: float) -> None:
    """Adds a finished call to the interval that is reported next."""
    progress.totals = {name: progress.totals.get(name, 0.0) + value for name, value in totals.items()}
    progress.epoch_totals = {name: progress.epoch_totals.get(name, 0.0) + value for name, value in totals.items()}
    progress.seconds += seconds
    progress.steps += steps


def report_interval(loop: LoopTools, progress: TrainingState) -> None:
    """Reports the means since the last report, and begins a new interval."""
    run = loop.run
    rate = run.trainer.optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        # The rate of the step that is done, not of the next.
        rate = rate(run.trainer.optimizer.iterations - 1)
    elif callable(rate):
        rate = rate()
    loop.report.train(
        progress.step,
        # An interval of a compiled model is an epoch, of which the logs hold the metrics, too.
        multi_step.means(run.trainer, progress.totals) if run.compiled is None else progress.logs,
        learning_rate=float(keras.ops.convert_to_numpy(rate)),
        seconds=progress.seconds,
        steps=progress.steps,
        skipped=None if run.config.train.nonfinite != "skip" else progress.skipped,
        wait_share=progress.totals["wait_seconds"] / max(progress.totals["seconds"], 1e-9),
        worker_shares=loop.train_call.take_shares(),
    )
    progress.totals, progress.seconds, progress.steps = {}, 0.0, 0


def damaged_data(run: run_lib.Run) -> ValueError | None:
    """Looks for the example that cannot be read, after a step failed; None where the data are sound."""
    for verify in run.verify:
        try:
            verify()
        except ValueError as error:
            return error
    return None
