"""Saves the run during the loop, and marks it as finished."""

import shutil
from collections.abc import Callable
from typing import Any

from tfdist.checkpoint import directory, export
from tfdist.checkpoint import format as checkpoint_format
from tfdist.config import diff
from tfdist.report import files, run_info
from tfdist.training.loop_services import LoopServices
from tfdist.training.reporting import report_run
from tfdist.training.state import TrainingState

FINISHED = "finished.json"
# Directory of the states of runs that ended with a replica mismatch.
MISMATCH = "mismatch"


def check_state(tools: LoopServices, state: TrainingState) -> None:
    """Runs the features' checks of the state, so that no run resumes from a wrong one. Every worker calls it.

    Raises:
        ReplicaMismatchError: the replicas differ.
        DivergedError: the weights are non-finite.
    """
    for extra in tools.extras:
        extra.check(tools, state)


def save(tools: LoopServices, state: TrainingState) -> None:
    """Starts a save of the current state; only the chief writes, while training continues. Every worker calls it.

    Raises as `check_state`, which is called first.
    """
    run = tools.run
    check_state(tools, state)
    with run.cluster.monitor.pause_timers():  # It may wait for hooks, and for the previous checkpoint.
        arrays = _collect(tools, state)
        if arrays is not None:
            tools.checkpointer.save(state.step, arrays, state.to_json())


def _collect(tools: LoopServices, state: TrainingState, *, wait: bool = False) -> Callable[[], dict[str, Any]] | None:
    """Collects the state of metrics and hooks in `state`. Every worker calls it.

    Args:
        wait: whether to wait first for a checkpoint that is being written.

    Returns:
        A function that copies the arrays of a checkpoint; None except on the chief of a run with a workdir.
    """
    run = tools.run
    within_epoch = state.step % run.steps_per_epoch != 0
    state.metrics = run.objective.state() if within_epoch else []
    if tools.checkpointer is None:
        return None
    if wait:
        tools.checkpointer.wait()
    state.callbacks, arrays = run.hooks.state(run.variables.values())
    return lambda: checkpoint_format.snapshot(run.variables) | arrays


def save_mismatch(tools: LoopServices, state: TrainingState) -> None:
    """After a replica mismatch, saves the chief's state in workdir/mismatch. Every worker calls it.

    It is not saved among the checkpoints, so that no run resumes from it automatically.
    """
    run = tools.run
    if run.workdir is None:
        return
    arrays = _collect(tools, state, wait=True)
    if arrays is None:
        return
    # Left by an earlier start.
    shutil.rmtree(directory.step_path(run.workdir / MISMATCH, state.step), ignore_errors=True)
    try:
        path = checkpoint_format.write(run.workdir / MISMATCH, state.step, arrays(), state.to_json())
    except OSError as error:
        tools.report.warning(f"The chief's state could not be saved: {files.describe_error(error)}")
        return
    tools.report.event(
        f"saved the chief's state in {path}; to continue from it, move it to {run.checkpoints}", state.step
    )


def save_stopped(tools: LoopServices, state: TrainingState) -> None:
    """Saves the run after all workers agreed to stop, and waits until it is written, or raises OSError."""
    run = tools.run
    run.stop.saving = True
    save(tools, state)
    wait_until_saved(tools, state)
    stopped = f"stopped by {run.stop.reason or 'another worker'} and saved"
    text = f"{stopped} at step {state.step} in {run.workdir}: run the same command to resume"
    tools.report.event(text, state.step, always=True)


def wait_until_saved(tools: LoopServices, state: TrainingState) -> None:
    """Waits until the last checkpoint is written, or raises OSError."""
    with tools.run.cluster.monitor.pause_timers():
        saved = tools.checkpointer is None or tools.checkpointer.wait()
    if not saved:
        left = directory.safe_state(tools.run.checkpoints)
        raise OSError(f"The last checkpoint, of step {state.step}, could not be written; {left}.")


def close(tools: LoopServices) -> None:
    """Closes the files of a run, however it ends; a checkpoint that is being written is completed first."""
    if tools.checkpointer is not None:
        with tools.run.cluster.monitor.pause_timers():
            tools.checkpointer.wait()
    for extra in tools.extras:
        extra.close()
    tools.report.close()
    if tools.lock is not None:
        tools.lock.release()


def mark_finished(tools: LoopServices, state: TrainingState) -> None:
    """Exports the final model and marks the run as finished, or raises OSError: run the same command to retry."""
    run = tools.run
    if run.workdir is None:
        return
    model, finished = run.workdir / "model.keras", run.workdir / FINISHED
    metric = run.config.checkpoint.best_metric
    best = {} if state.best.value is None or metric is None else {f"best_{metric}": state.best.value}
    early = {"stopped_by_callback": True} if state.step < run.total_steps else {}
    try:
        if run.config.checkpoint.export:
            with run.evaluated_weights(), files.waiting(model):
                event = export.export(run.context.model, model, run.feed.about.usage)
            tools.report.event(event, state.step)
        # config.json is written with a checkpoint; a resumed run with fewer steps may write none.
        run_info.write_config(str(run.workdir), diff.to_json(run.config))
        files.write_json(str(finished), {"step": state.step, **best, **early})
    except OSError as error:
        raise OSError(
            f"All {state.step} steps are done and saved, but {run.workdir} is not writable: "
            f"{files.describe_error(error)}. Free space or fix its permissions, then run the same command to export "
            "the model and finish."
        ) from None
    stopped = f" of {run.total_steps}: {run.hooks.stopped_by or 'a callback'} ended the run" if early else ""
    tools.report.event(f"finished after step {state.step}{stopped}", state.step)
    report_run.write_end(run, tools.report, state, tools.ledger)
