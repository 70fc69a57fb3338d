"""The training loop. Read `train_loop` first: it runs executions of many steps, and due actions between them."""

import math
import time

from tfdist.checkpoint import directory
from tfdist.cluster import interruption
from tfdist.report import files
from tfdist.training import checkpointing, opening
from tfdist.training.consistency import example_search, hashing, start_checks
from tfdist.training.evaluation import evaluate
from tfdist.training.execution import StopRequested
from tfdist.training.loop_services import LoopServices
from tfdist.training.reporting import ending, report_run
from tfdist.training.run import Run
from tfdist.training.state import TrainingState
from tfdist.training.step import optimizer as optimizer_lib


def train(run: Run, *, allow_config_changes: bool = False, allow_data_changes: bool = False) -> int:
    """Trains from the newest checkpoint, or from scratch, to the end.

    Returns:
        0 if the run is finished; `interruption.EXIT_STOPPED` if it was stopped and is saved.

    Raises:
        ValueError: the workdir holds a run with another config or other data, or the data cannot be used
            (`example_search.explain_errors`).
        OSError: another run writes to the workdir, or the last checkpoint or the model cannot be written.
        DivergedError: the loss or the weights are non-finite; the last good checkpoint is kept.
        ReplicaMismatchError: the replicas do not hold the same state, or the workers do not read the same examples.
        SystemExit: a hook of a script raised it.
    """
    run.cluster.monitor.waits_for_file = files.current_wait
    run.cluster.monitor.writing_seconds = lambda: 3 * run.stop.save_seconds()
    config_changes = opening.check_same_config(run, allow_config_changes)
    finished = None if run.is_script else opening.read_finished(run)
    if not run.is_script and run.cluster.broadcast(finished is not None):
        if run.cluster.is_chief:
            text = report_run.describe_finished(finished)
            more = f"For more epochs: tfdist train {run.workdir} --epochs=N. To train again, choose another --workdir."
            print(f"This run is finished; nothing to do. {text}\n{more}")
        return 0
    if run.cluster.any_worker(run.stop.reason is not None):
        return _stop_early(run)
    opened = opening.open_run(run)  # Restores the newest checkpoint, if there is one.
    if opened is None:
        return _stop_early(run)
    services, state = opened
    with ending.record_end(services), example_search.explain_errors(run):
        for line in config_changes:
            services.report.event(f"changed: {line}", state.step)
        # This may read whole splits to fill a cache, so a stop request interrupts it.
        data = run.stop.unless_stopped(lambda: start_checks.hash_examples(run.feed.examples(start_checks.EXAMPLES)))
        stop_requested = state.step < run.total_steps and run.stop.poll()
        if run.cluster.any_worker(data is None or stop_requested):
            run.stop.in_progress = True  # There is nothing to save.
            return _stop_early(run)
        common = data["columns"] | data["common"]
        start_checks.check_start(run.cluster, common, state.to_json())
        services.report.data({name: hashing.as_text(value) for name, value in common.items()})
        for text in start_checks.compare_with_saved(state, data, allow_changes=allow_data_changes or run.is_script):
            services.report.warning(text)
        checkpointing.check_state(services, state)
        return _train_or_stop(services, state)


def _stop_early(run: Run) -> int:
    if run.cluster.is_chief:
        left = "nothing to save" if run.checkpoints is None else directory.describe_remaining(run.checkpoints)
        print(f"stopped by {run.stop.reason or 'another worker'} before the first step: {left}")
    return interruption.EXIT_STOPPED


def _train_or_stop(services: LoopServices, state: TrainingState) -> int:
    """Returns the exit code of `train`."""
    try:
        train_loop(services, state)
        with services.run.cluster.monitor.pause_timers():
            end_run(services, state)
        return 0
    except StopRequested:
        with services.run.cluster.monitor.pause_timers():
            checkpointing.save_stopped(services, state)
            return interruption.EXIT_STOPPED


def train_loop(services: LoopServices, state: TrainingState) -> None:
    """Runs the steps after `state.step` to the end of the run; raises StopRequested if all workers agreed to stop."""
    run = services.run
    batches = run.feed.open_training(state.step, run.total_steps)
    services.report.progress(state.step, "compiling")
    run_due_actions(services, state)  # What was due when the run was interrupted.
    while state.step < run.total_steps and not run.ends_at(state.step):
        begin_execution(run, state)
        batches = run.feed.iterator_at(batches, state.step)
        started = time.perf_counter()
        execution = services.train_runner.execute(batches, next_due_step(services, state.step) - state.step)
        seconds = time.perf_counter() - started
        state.step += execution.steps
        run.cluster.monitor.note_progress(state.step)
        services.ledger.step = state.step
        for action in services.loop_actions:
            action.after_execution(services, state, execution)
        state.add(execution.totals, execution.steps, seconds)
        end_execution(run, state)
        report_if_due(services, state)
        run_due_actions(services, state)
        if execution.stop_requested and state.step < run.total_steps:
            raise StopRequested
        services.report.progress(state.step)


def next_due_step(services: LoopServices, step: int) -> int:
    """Returns the step by which the next execution must end: an action or a hook is due, or the run ends."""
    run, config = services.run, services.run.config
    step_in_epoch = step % run.steps_per_epoch
    due = [run.total_steps, *(boundary for action in services.loop_actions for boundary in action.boundaries(step))]
    for section in (config.report, config.evaluation, config.checkpoint):
        due.append(run.due(section.every).next_after(step))
    if run.is_script or run.hooks.active:
        due.append(step - step_in_epoch + run.steps_per_epoch)
    until_hook = run.hooks.steps_to_hook("train", step_in_epoch)
    due.append(None if until_hook is None else step + until_hook)
    return min(one for one in due if one is not None)


def run_due_actions(services: LoopServices, state: TrainingState) -> None:
    """Runs the actions of features, the evaluation and the checkpoint that are due.

    Raises StopRequested if all workers agreed to stop during the evaluation.
    """
    run, step = services.run, state.step
    for action in services.loop_actions:
        action.act_if_due(services, state)
    improved = False
    if evaluate.is_due(run, step) and state.last_evaluated_step < step:
        improved = _evaluate(services, state)
    end_epoch_if_due(run, state)  # As in Keras, after the evaluation.
    if (improved or run.save_is_due(step)) and not run.hooks.stopped_on_nan:
        checkpointing.save(services, state)


def _evaluate(services: LoopServices, state: TrainingState) -> bool:
    """Evaluates, and returns whether the values are the best so far."""
    options = services.run.config.checkpoint
    values = evaluate.evaluate(services, state.step, best=state.best.value)
    state.logs |= {f"val_{name}": value for name, value in values.items()}
    improved = evaluate.is_best(options, values, state.best.value)
    if improved:
        state.best.value, state.best.step = values[options.best_metric], state.step
    state.last_evaluated_step = state.step
    return improved


def begin_execution(run: Run, state: TrainingState) -> None:
    """At the start of an epoch, resets its totals; then calls the begin hooks."""
    epoch, step_in_epoch = divmod(state.step, run.steps_per_epoch)
    if step_in_epoch == 0:
        state.start_epoch()
        run.objective.reset()
        run.hooks.call("on_epoch_begin", epoch)
    run.hooks.before_steps("train", step_in_epoch)


def end_execution(run: Run, state: TrainingState) -> None:
    """Updates the epoch's values, and calls the end hooks of a batch."""
    step_in_epoch = (state.step - 1) % run.steps_per_epoch
    ends_epoch = step_in_epoch == run.steps_per_epoch - 1 or state.step == run.total_steps
    ends_batch = run.hooks.ends_batch("train", step_in_epoch, run.steps_per_epoch)
    if ends_epoch:
        run.feed.end_epoch()
    if not (ends_epoch or ends_batch or run.hooks.wants_progress("train") or run.ends_at(state.step)):
        return
    logs = run.objective.results(state.epoch_totals)
    run.hooks.after_steps("train", step_in_epoch, run.steps_per_epoch, lambda: logs)
    epoch_logs = run.objective.epoch_logs(logs) if ends_epoch or run.ends_at(state.step) else logs
    state.logs = epoch_logs | {name: value for name, value in state.logs.items() if name not in logs}


def end_epoch_if_due(run: Run, state: TrainingState) -> None:
    """Calls the end hooks of an epoch, once; the last epoch may be cut short."""
    completed = state.step % run.steps_per_epoch == 0 or run.ends_at(state.step)
    if completed and state.completed_epochs * run.steps_per_epoch < state.step:
        state.completed_epochs = math.ceil(state.step / run.steps_per_epoch)
        run.hooks.call("on_epoch_end", state.completed_epochs - 1, state.logs)


def report_if_due(services: LoopServices, state: TrainingState) -> None:
    """Reports the means since the last interval report, if one is due, and starts a new interval."""
    run, interval, due = services.run, state.interval, services.run.due(services.run.config.report.every)
    ends = run.ends_at(state.step) and not run.is_script and due.next_after(0) is not None
    if not (ends or due.is_due(state.step)):
        return
    services.report.train(
        state.step,
        # In a script an interval is an epoch, and `state.logs` includes the metrics.
        state.logs if run.is_script else run.objective.results(interval.totals),
        learning_rate=optimizer_lib.learning_rate(run.context.optimizer),
        seconds=interval.seconds,
        steps=interval.steps,
        num_examples=interval.steps * run.feed.sizes.global_batch,
        skipped=state.skipped if run.context.skips_nonfinite else None,
        wait_share=wait_share(run, interval.totals),
        worker_shares=services.train_runner.pop_time_fractions(),
    )
    services.ledger.write()
    interval.reset()


def wait_share(run: Run, totals: dict[str, float]) -> float | None:
    """Returns the fraction of time, 0 to 1, that the workers waited for input; None if steps are not timed."""
    return totals["wait_seconds"] / max(totals["seconds"], 1e-9) if run.context.times_steps else None


def end_run(services: LoopServices, state: TrainingState) -> None:
    """Waits for the last checkpoint, finalises the weights, exports the model and marks the run as finished."""
    run = services.run
    checkpointing.wait_until_saved(services, state)
    with run.cluster.scope():
        run.objective.finalise_weights()
    run.hooks.train_end(state.logs)
    if run.cluster.is_chief and not run.hooks.stopped_on_nan:
        checkpointing.mark_finished(services, state)
