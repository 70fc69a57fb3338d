"""The training loop. Read `train_loop` first: it runs executions of many steps, and what is due between them."""

import math
import time

from tfdist.report import files
from tfdist.training import checkpointing, triggers
from tfdist.training.consistency import hashing, nonfinite, start_checks
from tfdist.training.evaluation import evaluate
from tfdist.training.execution import Execution, StopRequested, explain_errors
from tfdist.training.loop_tools import LoopTools
from tfdist.training.reporting import ending, report_run
from tfdist.training.run import Run
from tfdist.training.state import TrainingState
from tfdist.training.step import optimizer as optimizer_lib


def train(run: Run, *, allow_config_changes: bool = False, allow_data_changes: bool = False) -> int:
    """Trains from the newest checkpoint, or from scratch, to the end.

    Returns:
        0 if the run is finished; one of `interruption.EXITS_SAVED` if it was stopped and is saved.

    Raises:
        ValueError: the workdir holds a run of another config, or with other data; or see `execution.explain_errors`.
        DivergedError: the loss or the weights are non-finite; the last good checkpoint is kept.
        ReplicaMismatchError: the replicas do not hold the same state, or the workers do not read the same examples.
        SystemExit: a callback of a script raised it.
    """
    run.cluster.monitor.watch_files(files.waits, lambda: 3 * run.stop.save_seconds())
    changes = checkpointing.check_same_config(run, allow_config_changes)
    finished = None if run.is_script else checkpointing.read_finished(run)
    if not run.is_script and run.cluster.broadcast(finished is not None):
        if run.cluster.is_chief:
            text = report_run.describe_finished(finished)
            more = f"For more epochs: tfdist train {run.workdir} --epochs=N. To train again, choose another --workdir."
            print(f"This run is finished; nothing to do. {text}\n{more}")
        return 0
    opened = None if run.cluster.any_worker(run.stop.reason is not None) else checkpointing.open_run(run)
    if opened is None:
        return _stop_early(run)
    tools, state = opened
    with ending.record_end(tools, state), explain_errors(run):
        for line in changes:
            tools.report.event(f"changed: config.{line}", state.step)
        # It may read whole splits, to store them.
        data = run.stop.unless_stopped(lambda: start_checks.hash_examples(run.feed.examples(start_checks.EXAMPLES)))
        too_late = state.step < run.total_steps and run.stop.requested()
        if run.cluster.any_worker(data is None or too_late):
            run.stop.saving = True
            return _stop_early(run)
        start_checks.check_start(run.cluster, data["common"], state.to_json())
        tools.report.data({name: hashing.as_text(value) for name, value in data["common"].items()})
        for text in start_checks.compare_with_saved(state, data, allow_changes=allow_data_changes or run.is_script):
            tools.report.warning(text)
        tools.consistency.check(state)
        return _train_or_stop(tools, state)


def _stop_early(run: Run) -> int:
    if run.cluster.is_chief:
        print(f"stopped by {run.stop.reason or 'another worker'} {report_run.describe_early_stop(run)}")
    return ending.stopped_code(run)


def _train_or_stop(tools: LoopTools, state: TrainingState) -> int:
    """Returns the exit code of `train`."""
    try:
        train_loop(tools, state)
        with tools.run.cluster.monitor.pause_timers():
            end_run(tools, state)
        return 0
    except StopRequested:
        with tools.run.cluster.monitor.pause_timers():
            checkpointing.save_stopped(tools, state)
            return ending.stopped_code(tools.run)


def train_loop(tools: LoopTools, state: TrainingState) -> None:
    """Runs the steps after `state.step` to the end of the run; raises StopRequested if all workers agreed to stop."""
    run = tools.run
    batches = run.feed.open_training(state.step, run.total_steps)
    tools.report.progress(state.step, "compiling")
    run_due_actions(tools, state)  # What was due when the run was interrupted.
    while state.step < run.total_steps and not run.ends_at(state.step):
        begin_execution(run, state)
        batches = run.feed.iterator_at(batches, state.step)
        started = time.perf_counter()
        execution = tools.train_steps(batches, next_due_step(tools, state.step) - state.step)
        seconds = time.perf_counter() - started
        state.step += execution.steps
        run.cluster.monitor.note_progress(state.step)
        tools.ledger.step = state.step
        rolled_back = handle_nonfinite(tools, state, execution)
        if rolled_back:
            batches = run.feed.open_training(state.step, run.total_steps)
        else:
            state.add(execution.totals, execution.steps, seconds)
            end_execution(run, state)
            report_if_due(tools, state)
        run_due_actions(tools, state, save=execution.save_requested)
        if execution.stop_requested and state.step < run.total_steps:
            raise StopRequested
        tools.report.progress(state.step)


def handle_nonfinite(tools: LoopTools, state: TrainingState, execution: Execution) -> bool:
    """Applies `config.train.nonfinite` where it has a say; returns whether the run was rolled back."""
    finite = math.isfinite(execution.totals["loss"]) and not execution.skipped_steps
    if finite and tools.run.config.train.nonfinite != "rollback":  # Which also looks at the weights.
        return False
    return nonfinite.handle(tools, state, execution)


def next_due_step(tools: LoopTools, step: int) -> int:
    """Returns the first step after `step` at which an execution must end: something is due, or the run ends."""
    run, config = tools.run, tools.run.config
    step_in_epoch = step % run.steps_per_epoch
    due = [run.total_steps, *(boundary for extra in tools.extras for boundary in extra.boundaries(step))]
    for section in (config.report, config.evaluation, config.consistency, config.checkpoint):
        due.append(triggers.next_due(section.every, step, run.steps_per_epoch))
    if run.is_script or run.callbacks.active:
        due.append(step - step_in_epoch + run.steps_per_epoch)
    until_hook = run.callbacks.steps_to_hook("train", step_in_epoch)
    due.append(None if until_hook is None else step + until_hook)
    return min(one for one in due if one is not None)


def run_due_actions(tools: LoopTools, state: TrainingState, *, save: bool = False) -> None:
    """Checks the replicas, evaluates and saves, each if due; `save`: a user asked for it. May raise StopRequested."""
    run, step = tools.run, state.step
    for extra in tools.extras:
        extra.write_due(step)
    if tools.comparison_is_due(step):
        tools.consistency.check(state)
    improved = evaluate.is_due(run, step) and state.last_evaluated_step < step and _evaluate(tools, state)
    end_epoch_if_due(run, state)
    due = improved or run.save_is_due(step)
    if (due or save) and not run.callbacks.stopped_on_nan:
        checkpointing.save(tools, state, scheduled=due)


def _evaluate(tools: LoopTools, state: TrainingState) -> bool:
    """Evaluates, and returns whether the values are the best so far."""
    options = tools.run.config.checkpoint
    values = evaluate.evaluate(tools, state.step, best=state.best.value)
    state.logs |= {f"val_{name}": value for name, value in values.items()}
    improved = evaluate.is_best(options, values, state.best.value)
    if improved:
        state.best.value, state.best.step = values[options.best_metric], state.step
    state.last_evaluated_step = state.step
    return improved


def begin_execution(run: Run, state: TrainingState) -> None:
    """Calls the callbacks' hooks at the start of an epoch and of a batch."""
    epoch, step_in_epoch = divmod(state.step, run.steps_per_epoch)
    if step_in_epoch == 0:
        state.start_epoch()
        run.objective.reset()
        run.callbacks.call("on_epoch_begin", epoch)
    if run.callbacks.begins_batch("train", step_in_epoch):
        run.callbacks.call("on_train_batch_begin", step_in_epoch)


def end_execution(run: Run, state: TrainingState) -> None:
    """Updates the epoch's values, and calls the callbacks' hooks at the end of a batch."""
    step_in_epoch = (state.step - 1) % run.steps_per_epoch
    ends_epoch = step_in_epoch == run.steps_per_epoch - 1 or state.step == run.total_steps
    ends_batch = run.callbacks.ends_batch("train", step_in_epoch, run.steps_per_epoch)
    if ends_epoch:
        run.feed.end_epoch()
    if not (ends_epoch or ends_batch or run.callbacks.wants_progress("train") or run.ends_at(state.step)):
        return
    logs = run.objective.results(state.epoch_totals)
    if run.callbacks.wants_progress("train"):
        run.callbacks.progress(step_in_epoch + 1, logs)
    if ends_batch:
        run.callbacks.call("on_train_batch_end", run.callbacks.last_of_batch("train", step_in_epoch), logs)
    of_epoch = run.objective.of_epoch(logs) if ends_epoch or run.ends_at(state.step) else logs
    state.logs = of_epoch | {name: value for name, value in state.logs.items() if name not in logs}


def end_epoch_if_due(run: Run, state: TrainingState) -> None:
    """Calls the callbacks' hooks at the end of an epoch, once; the last epoch may be cut short."""
    completed = state.step % run.steps_per_epoch == 0 or run.ends_at(state.step)
    if completed and state.completed_epochs * run.steps_per_epoch < state.step:
        state.completed_epochs = math.ceil(state.step / run.steps_per_epoch)
        run.callbacks.call("on_epoch_end", state.completed_epochs - 1, state.logs)


def report_if_due(tools: LoopTools, state: TrainingState) -> None:
    """Reports the means since the last interval report, if one is due, and starts a new interval."""
    run, interval, every = tools.run, state.interval, tools.run.config.report.every
    ends = run.ends_at(state.step) and not run.is_script and triggers.is_ever_due(every)
    if not (ends or triggers.is_due(every, state.step, run.steps_per_epoch)):
        return
    tools.report.train(
        state.step,
        # An interval of a script is an epoch. Its logs hold the metrics as well.
        state.logs if run.is_script else run.objective.results(interval.totals),
        learning_rate=optimizer_lib.learning_rate(run.context.optimizer),
        seconds=interval.seconds,
        steps=interval.steps,
        num_examples=interval.steps * run.feed.sizes.global_batch,
        skipped=None if run.config.train.nonfinite != "skip" else state.skipped,
        wait_share=wait_share(run, interval.totals),
        worker_shares=tools.train_steps.pop_time_fractions(),
    )
    interval.reset()


def wait_share(run: Run, totals: dict[str, float]) -> float | None:
    """Returns the fraction of the time, 0 to 1, that the workers waited for input; None if steps are not timed."""
    return totals["wait_seconds"] / max(totals["seconds"], 1e-9) if run.context.times_steps else None


def end_run(tools: LoopTools, state: TrainingState) -> None:
    """Waits for the last checkpoint, finalises the weights, exports the model and marks the run as finished."""
    run = tools.run
    checkpointing.wait_until_saved(tools, state)
    with run.cluster.scope():
        run.objective.finalise_weights()
    run.callbacks.train_end(state.logs)
    if run.cluster.is_chief and not run.callbacks.stopped_on_nan:
        checkpointing.mark_finished(tools, state)
