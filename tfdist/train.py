"""The loop, and the evaluation beside it."""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import agreement, divergence, evaluation, experiment, intervals, step
from tfdist import loop as loop_lib
from tfdist.checkpoint import directory, export
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import interruption
from tfdist.cluster.liveness import heartbeat
from tfdist.config import diff
from tfdist.loop import Loop, Progress
from tfdist.report import files, run_info

FINISHED = "finished.json"


def train(run: experiment.Run, *, allow_config_changes: bool = False) -> int:
    """Trains from the newest checkpoint, or from the start, to the end.

    Returns:
        0 when the run is finished; `interruption.EXIT_STOPPED` when it was asked to stop, and is saved.

    Raises:
        ValueError: the workdir holds a run of another config.
        DivergedError: the loss or the weights are no longer finite; the last good checkpoint is kept.
        DisagreementError: the replicas do not hold the same state, or the workers do not read the same examples.
    """
    check_same_config(run, allow_config_changes)
    if run.compiled is None and run.cluster.from_chief(is_finished(run)):
        if run.cluster.is_chief:
            print(f"This run is finished; nothing is changed. {(run.workdir / FINISHED).read_text().strip()}")
        return 0
    if run.cluster.any(run.stop.reason is not None):
        if run.cluster.is_chief:
            print(f"stopped by {run.stop.reason or 'another worker'} before a step was made: there is nothing to save")
        return interruption.EXIT_STOPPED
    loop, progress = loop_lib.open_loop(run)
    try:
        agreement.check_start(run.cluster, run.examples, dataclasses.asdict(progress))
        loop.agreement.check(progress.step)
        finished = train_loop(loop, progress)
        await_saved(loop, progress)
        if not finished:
            loop.report.event(f"stopped by {run.stop.reason or 'another worker'} and saved", progress.step)
            return interruption.EXIT_STOPPED
        if run.compiled is not None:
            with run.cluster.scope():
                run.compiled.finish()
        run.hooks.train_end(progress.logs)
        if run.cluster.is_chief and not run.hooks.terminated:
            finish(loop, progress)
        return 0
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError, tf.errors.NotFoundError) as error:
        heartbeat.take_over()  # To find the example may take longer than the other workers last.
        raise damaged_data(run) or error from None
    finally:
        close(loop)


def await_saved(loop: Loop, progress: Progress) -> None:
    """Waits until the last checkpoint is written.

    Raises:
        OSError: it could not be.
    """
    if loop.saver is not None and not loop.saver.wait():
        raise OSError(f"The last checkpoint, of step {progress.step}, could not be written: the run is not saved.")


def close(loop: Loop) -> None:
    """Ends what the loop writes; however the run ends, the checkpoint that is being written shall be whole."""
    if loop.saver is not None:
        loop.saver.wait()
    loop.board.close()
    loop.report.close()


def train_loop(loop: Loop, progress: Progress) -> bool:
    """Runs the steps from `progress` on; returns False where the workers agreed to stop before the last."""
    run, total_steps = loop.run, loop.run.total_steps
    iterator = open_stream(run, progress.step)
    loop.report.progress(progress.step, "compiling")
    if not at_boundary(loop, progress):  # What was due when the run was interrupted.
        return False
    while progress.step < total_steps and not run.hooks.stop():
        begin_call(run, progress)
        first_step, started = progress.step + 1, time.perf_counter()
        steps, totals = loop.train_call(iterator, next_boundary(loop, progress.step) - progress.step)
        progress.step += steps
        run.cluster.progress(progress.step)
        if divergence.settle(loop, progress, first_step, totals):
            iterator = open_stream(run, progress.step)
        else:
            add_call(progress, totals, steps, time.perf_counter() - started)
            end_call(run, progress)
            if intervals.is_due(run.config.report.every, progress.step, run.steps_per_epoch):
                report_interval(loop, progress)
        if not at_boundary(loop, progress):
            return False
        if totals["stop"] > 0 and progress.step < total_steps:
            return stop_here(loop, progress)
        loop.report.progress(progress.step)
    return True


def stop_here(loop: Loop, progress: Progress) -> bool:
    """Begins to save the run where the workers have agreed to stop; returns False, as what calls it does."""
    loop.run.stop.saving = True
    divergence.save(loop, progress, regular=False)
    return False


def open_stream(run: experiment.Run, step: int) -> Iterator[Any]:
    """Opens this worker's share of the steps after `step`."""
    return run.cluster.distribute(experiment.training_dataset(run, first_step=step, last_step=run.total_steps))


def begin_call(run: experiment.Run, progress: Progress) -> None:
    """Tells the callbacks that an epoch or a call begins."""
    epoch, step_in_epoch = divmod(progress.step, run.steps_per_epoch)
    if step_in_epoch == 0:
        progress.epoch_totals, progress.logs = {}, {}
        if run.compiled is not None:
            run.compiled.reset()
        run.hooks.epoch_begin(epoch)
    if run.hooks.begins_batch("train", step_in_epoch):
        run.hooks.batch_begin(step_in_epoch)


def end_call(run: experiment.Run, progress: Progress) -> None:
    """Tells the callbacks that a call has ended, and notes what the epoch has come to."""
    step_in_epoch = (progress.step - 1) % run.steps_per_epoch
    ends_epoch = step_in_epoch == run.steps_per_epoch - 1 or progress.step == run.total_steps
    ends_batch = run.hooks.ends_batch("train", step_in_epoch, run.steps_per_epoch)
    if not (ends_epoch or ends_batch or run.hooks.shows("train") or run.hooks.terminated):
        return
    logs = evaluation.values(run, progress.epoch_totals)
    progress.logs = logs | {name: value for name, value in progress.logs.items() if name not in logs}
    if run.hooks.shows("train"):
        run.hooks.progress(step_in_epoch + 1, logs)
    if ends_batch:
        run.hooks.batch_end(run.hooks.last_of_batch("train", step_in_epoch), logs)


def next_boundary(loop: Loop, now: int) -> int:
    """The next step at which something is due: a report, an evaluation, a checkpoint or the end."""
    run, config = loop.run, loop.run.config
    sections = (config.report, config.evaluation, config.agreement, config.checkpoint)
    due = (intervals.next_due(section.every, now, run.steps_per_epoch) for section in sections)
    in_epoch = now % run.steps_per_epoch
    if run.compiled is not None or run.hooks.listens:
        due = (*due, now - in_epoch + run.steps_per_epoch)
    if "train" in run.hooks.each_steps:
        steps = run.hooks.each_steps["train"]
        due = (*due, now - in_epoch % steps + steps)
    return min([run.total_steps, *loop.board.boundaries(now), *(step for step in due if step is not None)])


def at_boundary(loop: Loop, progress: Progress) -> bool:
    """Evaluates and saves where that is due; returns False where a stop was agreed on meanwhile."""
    run, config, now = loop.run, loop.run.config, progress.step
    improved = False
    loop.board.look(now)
    if loop_lib.ends(run, now) or intervals.is_due(config.agreement.every, now, run.steps_per_epoch):
        loop.agreement.check(now)
    if evaluation.evaluation_is_due(run, now) and progress.evaluated < now:
        evaluated = evaluation.evaluate(loop, now, best=progress.best)
        if evaluated is None:
            return stop_here(loop, progress)
        progress.logs |= {f"val_{name}": value for name, value in evaluated.items()}
        improved = evaluation.is_best(config.checkpoint, evaluated, progress.best)
        if improved:
            progress.best, progress.best_step = evaluated[config.checkpoint.best_metric], now
        progress.evaluated = now
    if progress.epochs * run.steps_per_epoch < now and (now % run.steps_per_epoch == 0 or loop_lib.ends(run, now)):
        progress.epochs = math.ceil(now / run.steps_per_epoch)
        run.hooks.epoch_end(progress.epochs - 1, progress.logs)
    if (improved or loop_lib.save_is_due(run, now)) and not run.hooks.terminated:
        divergence.save(loop, progress, regular=True)
    if improved and loop.saver is not None:
        loop.saver.mark_best(now, config.checkpoint.best_metric, progress.best)
    return True


def add_call(progress: Progress, totals: dict[str, float], steps: int, seconds: float) -> None:
    """Adds a finished call to the interval that is reported next."""
    progress.totals = {name: progress.totals.get(name, 0.0) + value for name, value in totals.items()}
    progress.epoch_totals = {name: progress.epoch_totals.get(name, 0.0) + value for name, value in totals.items()}
    progress.seconds += seconds
    progress.steps += steps


def report_interval(loop: Loop, progress: Progress) -> None:
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
        step.means(run.trainer, progress.totals) if run.compiled is None else progress.logs,
        learning_rate=float(keras.ops.convert_to_numpy(rate)),
        seconds=progress.seconds,
        steps=progress.steps,
        skipped=None if run.config.train.nonfinite != "skip" else progress.skipped,
        wait_share=progress.totals["wait_seconds"] / max(progress.totals["seconds"], 1e-9),
        worker_shares=loop.train_call.take_shares(),
    )
    progress.totals, progress.seconds, progress.steps = {}, 0.0, 0


def damaged_data(run: experiment.Run) -> ValueError | None:
    """Looks for the example that cannot be read, after a step failed; None where the data are sound."""
    for verify in run.verify:
        try:
            verify()
        except ValueError as error:
            return error
    return None


def is_finished(run: experiment.Run) -> bool:
    """Whether the workdir's run has come to its end, and that is not before the end that the config sets now."""
    if run.workdir is None:
        return False
    path = run.workdir / FINISHED
    if not path.exists():
        return False
    finished = json.loads(path.read_text())
    return finished["step"] >= run.total_steps or finished.get("stopped_by_callback", False)


def check_same_config(run: experiment.Run, allow_changes: bool) -> None:
    """Refuses to go on with a run of another config.

    Raises:
        ValueError: names every field that differs, with both values.
    """
    old = None if run.workdir is None else run_info.read_config(str(run.workdir))
    if old is None or allow_changes:
        return
    lines = diff.differences(old, run_info.plain(run.config))
    if run.compiled is not None:  # A script's learning rate does not hang on its length, which may grow.
        lines = [line for line in lines if not line.startswith("train.epochs:")]
    if lines:
        raise ValueError(
            f"{run.workdir} holds a run of another config:\n"
            + "".join(f"  config.{line}\n" for line in lines)
            + "Choose another --workdir, or go on with the new values with --allow_config_changes."
        )


def finish(loop: Loop, progress: Progress) -> None:
    """Exports the final model and marks the run as finished.

    Raises:
        OSError: the workdir cannot be written. The same command comes here again.
    """
    run = loop.run
    if run.workdir is None:
        return
    model, finished = run.workdir / "model.keras", run.workdir / FINISHED
    best = {} if progress.best is None else {f"best_{run.config.checkpoint.best_metric}": progress.best}
    early = {"stopped_by_callback": True} if progress.step < run.total_steps else {}
    try:
        if run.config.checkpoint.export:
            export.export(run.trainer.model, model)
            loop.report.event(f"exported {model}", progress.step)
        files.write_json(str(finished), {"step": progress.step, **best, **early})
    except OSError as error:
        raise OSError(
            f"All {progress.step} steps are made and saved, and {run.workdir} cannot be written: "
            f"{export.reason(error)}. Free or unlock it; the same command then exports the model and finishes the run."
        ) from None
    loop.report.event(f"finished after step {progress.step}", progress.step)


def evaluate_only(run: experiment.Run, which: str) -> int:
    """Evaluates one checkpoint, changing nothing in the workdir.

    Args:
        which: "newest", "best", or a step.

    Raises:
        ValueError: there is no such checkpoint, or it is damaged, or the config names no evaluation split.
    """
    if run.evaluation_data is None:
        raise ValueError("--mode=eval needs a split to evaluate. Received: config.data.evaluation_split=None")
    chosen = 0
    if run.cluster.is_chief:
        chosen = checkpoint_format.find(
            run.checkpoints, which, lambda text: print(f"tfdist: {text}", file=sys.stderr)
        ).step
    chosen = run.cluster.from_chief(chosen)
    saved = checkpoint_format.verify(directory.step_path(run.checkpoints, chosen))
    checkpoint_format.restore(saved, run.variables)
    reporter = loop_lib.open_reporter(run, None)
    reporter.event(f"evaluating {saved.path}")
    loop = loop_lib.make_loop(run, reporter, None)
    loop.agreement.check(saved.step)
    values = evaluation.evaluate(loop, saved.step)
    reporter.close()
    if values is None:
        return interruption.EXIT_STOPPED
    if run.cluster.is_chief:
        print(json.dumps({"step": saved.step, "num_examples": run.evaluation_examples, **values}))
    return 0
