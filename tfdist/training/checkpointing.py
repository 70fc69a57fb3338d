"""Saves the run during the loop, and marks it as finished."""

from tfdist.checkpoint import directory, export
from tfdist.checkpoint import format as checkpoint_format
from tfdist.report import files
from tfdist.training.loop_services import LoopServices
from tfdist.training.reporting import report_run
from tfdist.training.state import TrainingState

FINISHED = "finished.json"


def check_state(services: LoopServices, state: TrainingState) -> None:
    """Runs the features' checks of the state, so that no run resumes from a bad state. Every worker calls it.

    Raises:
        ReplicaMismatchError: the replicas differ.
        DivergedError: the weights are non-finite.
    """
    for action in services.loop_actions:
        action.check(services, state)


def save(services: LoopServices, state: TrainingState) -> None:
    """Starts saving the current state: the chief writes it while training continues. Every worker calls this.

    Raises as `check_state`, which is called first.
    """
    run = services.run
    check_state(services, state)
    with run.cluster.monitor.pause_timers():  # It may wait for hooks, and for the previous checkpoint.
        within_epoch = state.step % run.steps_per_epoch != 0
        state.metrics = run.objective.state() if within_epoch else []
        if services.checkpointer is not None:
            state.callbacks, arrays = run.hooks.state(run.variables.values())
            services.checkpointer.save(
                state.step, lambda: checkpoint_format.snapshot(run.variables) | arrays, state.to_json()
            )


def save_stopped(services: LoopServices, state: TrainingState) -> None:
    """Saves the run after all workers agreed to stop, and waits until the checkpoint is written, or raises OSError."""
    run = services.run
    run.stop.in_progress = True
    save(services, state)
    wait_until_saved(services, state)
    stopped = f"stopped by {run.stop.reason or 'another worker'} and saved"
    text = f"{stopped} at step {state.step} in {run.workdir}: run the same command to resume"
    services.report.event(text, state.step, always=True)


def wait_until_saved(services: LoopServices, state: TrainingState) -> None:
    """Waits until the last checkpoint is written, or raises OSError."""
    with services.run.cluster.monitor.pause_timers():
        saved = services.checkpointer is None or services.checkpointer.wait()
    if not saved:
        left = directory.describe_remaining(services.run.checkpoints)
        raise OSError(f"The last checkpoint, of step {state.step}, could not be written; {left}.")


def close(services: LoopServices) -> None:
    """Closes the files of a run, however it ends; first waits for a checkpoint that is being written."""
    if services.checkpointer is not None:
        with services.run.cluster.monitor.pause_timers():
            services.checkpointer.wait()
    for action in services.loop_actions:
        action.close()
    services.report.close()
    if services.lock is not None:
        services.lock.release()


def mark_finished(services: LoopServices, state: TrainingState) -> None:
    """Exports the final model and marks the run as finished, or raises OSError: run the same command to retry."""
    run = services.run
    if run.workdir is None:
        return
    model, finished = run.workdir / "model.keras", run.workdir / FINISHED
    metric = run.config.checkpoint.best_metric
    best = {} if state.best.value is None or metric is None else {f"best_{metric}": state.best.value}
    early = {"stopped_by_callback": True} if state.step < run.total_steps else {}
    try:
        if run.config.checkpoint.export:
            with run.evaluated_weights(), files.waiting(model):
                event = export.export(run.context.model, model)
            services.report.event(event, state.step)
        files.write_json(str(finished), {"step": state.step, **best, **early})
    except OSError as error:
        raise OSError(
            f"All {state.step} steps are done and saved, but {run.workdir} is not writable: "
            f"{files.describe_error(error)}. Free space or fix its permissions, then run the same command to export "
            "the model and finish."
        ) from None
    stopped = f" of {run.total_steps}: {run.hooks.stopped_by or 'a callback'} ended the run" if early else ""
    services.report.event(f"finished after step {state.step}{stopped}", state.step)
    report_run.write_end(run, services.report, state, services.ledger)
