"""Opens a run: checks its workdir, restores the newest checkpoint, and makes the objects that the loop uses."""

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tfdist import config as config_lib
from tfdist.checkpoint import directory, restore, workdir_lock
from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint.async_writer import AsyncCheckpointer
from tfdist.checkpoint.format import Saved
from tfdist.checkpoint.workdir_lock import WorkdirLock
from tfdist.cluster import interruption, slurm_requeue
from tfdist.cluster.control import heartbeat_monitor
from tfdist.cluster.discovery import slurm_job, worker_spec
from tfdist.config import config_dict, diff
from tfdist.report import files, run_info
from tfdist.report import ledger as ledger_lib
from tfdist.report.ledger import Ledger
from tfdist.report.reporter import Reporter
from tfdist.training import checkpointing, execution, features
from tfdist.training.loop_services import LoopServices
from tfdist.training.reporting import report_run
from tfdist.training.run import Run
from tfdist.training.state import TrainingState
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.random_numbers import seed_generators

# Assumed write speed until the first checkpoint is measured.
_SLOW_BYTES_PER_SECOND = 20e6


def check_same_config(run: Run, allow_changes: bool) -> list[str]:
    """Checks that the workdir holds no run of another config.

    Returns:
        The changes that are allowed: a line for every field that differs, with both values.

    Raises:
        ValueError: names every field that differs, with both values.
    """
    old = None if run.workdir is None else run_info.read_config(str(run.workdir))
    if old is None:
        return []
    try:
        lines = diff.differences(diff.to_json(config_dict.from_saved(old)), diff.to_json(run.config))
    except (ValueError, RecursionError) as error:  # Of another release, or damaged.
        lines = [f"{error}"]
    advice = "Choose another --workdir, or continue with the new values: --allow_config_changes."
    if run.is_script:  # A script makes its own optimizer, independent of the number of epochs, which may grow.
        may_change = (
            "config.train.epochs:",
            "config.learning_rate.",
            "config.optimizer.",
            "config.model.call: '(absent)'",
        )
        lines = [line for line in lines if not line.startswith(may_change)]
        advice = "Choose another workdir, or make the same calls of fit again: finished ones do not train."
    if lines and not allow_changes:
        shown = "".join(f"  {line}\n" for line in lines)
        raise ValueError(f"{run.workdir} contains a run with a different config:\n{shown}{advice}")
    return lines


def read_finished(run: Run) -> dict[str, Any] | None:
    """Returns finished.json if the workdir's run reached the end that the config now sets, or a callback ended it."""
    if run.workdir is None:
        return None
    path, advice = run.workdir / checkpointing.FINISHED, "remove it; the same command then finishes the run again."
    finished = files.read_json(path, advice)
    if finished is None:
        return None
    numbers = all(isinstance(value, int | float) and abs(value) < 1e300 for value in finished.values())
    if not (numbers and isinstance(finished.get("step"), int)):
        raise ValueError(f"{path} is damaged (a value is missing or wrong): {advice}")
    return finished if finished["step"] >= run.total_steps or finished.get("stopped_by_callback") else None


def open_run(run: Run) -> tuple[LoopServices, TrainingState] | None:
    """Restores the newest checkpoint on every worker, and opens the report and the checkpointer on the chief.

    The workdir stays locked until `checkpointing.close`. Returns None if a stop signal ended the wait for the lock.

    Raises:
        WorkdirInUseError: another run writes to the workdir.
        DamagedCheckpointError: there are checkpoints, but none is valid.
        ValueError: the checkpoint belongs to another model or optimizer.
    """
    rate = optimizer_lib.settable_learning_rate(run.context.optimizer)  # Callbacks may change it from now on.
    if run.workdir is None:
        run.hooks.train_begin()
        return make_services(run, report_run.open_report(run, None), None), _new_state(run, rate)
    with contextlib.ExitStack() as stack:
        damaged: list[str] = []

        def lock_and_find() -> tuple[WorkdirLock, Saved | None]:
            lock = _lock_workdir(run.workdir, run.config.cluster, run.cluster.num_workers)
            stack.callback(lock.release)  # Called if opening the run fails.
            return lock, checkpoint_format.newest_valid(run.checkpoints, damaged.append, holds_lock=True)

        found = run.stop.unless_stopped(lock_and_find) if run.cluster.is_chief else None
        if not run.cluster.broadcast(found is not None):
            return None
        lock, saved = found or (None, None)
        saved = restore.broadcast_saved(run.cluster, saved)
        opened = _open_workdir(run, lock, saved, damaged, rate)
        stack.pop_all()
        return opened


def _open_workdir(
    run: Run, lock: WorkdirLock | None, saved: Saved | None, damaged: list[str], rate: float | None
) -> tuple[LoopServices, TrainingState]:
    state = _new_state(run, rate) if saved is None else TrainingState.from_json(saved.state)
    state.count_epochs(run.steps_per_epoch)
    state.reset_best_if_changed(run.config.checkpoint.best_metric, run.config.checkpoint.best_mode)
    if saved is None:
        run.hooks.train_begin(saves=True)
    else:
        _restore(run, state, saved)
    state.learning_rate, rate_note = optimizer_lib.resume_learning_rate(
        run.context.optimizer, rate, state.learning_rate
    )
    report = report_run.open_report(
        run, str(run.workdir), resume_step=state.step, resume_evaluated=state.last_evaluated_step
    )
    for text in damaged:
        report.warning(text)
    checkpointer = _open_checkpointer(run, report, state, saved) if run.cluster.is_chief else None
    if rate_note is not None:
        report.event(rate_note, state.step)
    if run.config.cluster.requeue:
        before = directory.write_times(run.checkpoints)
        # The first execution has one step. A checkpoint after it is no progress: even a job with time for no other step
        # saves it, and would requeue itself forever.
        no_progress = (state.step, state.step + 1)
        slurm_requeue.enable_requeue(
            run.cluster.rank,
            run.stop,
            lambda: any(one[0] not in no_progress for one in directory.write_times(run.checkpoints) - before),
        )
    report_run.write_start(run, report, None if saved is None else saved.step)
    ledger = _open_ledger(run, state)
    return make_services(run, report, checkpointer, lock, ledger), state


def _new_state(run: Run, rate: float | None) -> TrainingState:
    return TrainingState(
        step=run.feed.sizes.first_step,
        last_evaluated_step=run.feed.sizes.first_step,
        completed_epochs=run.feed.sizes.first_step // run.steps_per_epoch,
        learning_rate=rate,
    )


def _restore(run: Run, state: TrainingState, saved: Saved) -> None:
    epoch_ended = state.step <= state.completed_epochs * run.steps_per_epoch
    # Before `restore`: variables that hooks change here then get their values from the checkpoint.
    epoch = None if epoch_ended else (state.step - 1) // run.steps_per_epoch
    run.hooks.train_begin(state.callbacks, epoch, ended=state.step >= run.total_steps, saves=True)
    restore.restore(run.cluster, saved, run.variables)
    seeds = (run.context.model, run.context.step_count, run.replica_of_draws, run.config.seed)
    seed_generators.make_stateless(*seeds)  # The checkpoint has the generators' own seeds.
    if state.callbacks:
        names = checkpoint_format.callback_names(saved)
        run.hooks.resume(state.callbacks, dict(restore.read(run.cluster, saved, names)))
    if state.metrics:
        run.objective.restore_state(state.metrics)


def _open_checkpointer(run: Run, report: Reporter, state: TrainingState, saved: Saved | None) -> AsyncCheckpointer:
    checkpointer = AsyncCheckpointer(run.checkpoints, run.config.checkpoint.keep, report.warning)
    checkpointer.remove_partial(saved)
    assumed_seconds = checkpoint_format.num_bytes(run.variables) / _SLOW_BYTES_PER_SECOND
    run.stop.save_seconds = lambda: checkpointer.longest_write_seconds or assumed_seconds
    if saved is not None:
        ended = run.is_script and (state.step >= run.total_steps or run.hooks.stop_requested())
        advice = ", the end of the run: increase epochs to continue, or use another workdir" if ended else ""
        report.event(f"resumed from {saved.path}{advice}", saved.step)
    return checkpointer


def _lock_workdir(workdir: Path, options: config_lib.ClusterOptions, num_workers: int) -> WorkdirLock:
    """Makes this run the only one in its workdir; raises as `workdir_lock.acquire`. Called on the chief."""
    return workdir_lock.acquire(
        workdir,
        job=slurm_job.job_id(os.environ) or "",
        heartbeat_seconds=options.heartbeat_seconds,
        wait_seconds=worker_spec.connect_seconds(options.connect_seconds, num_workers),
        lost=_end_second_writer,
        log=lambda text: print(f"tfdist: {text}", file=sys.stderr, flush=True),
    )


def _end_second_writer(other: str) -> None:
    """Ends this process at once, from the lock's thread: two runs must not write to one workdir."""
    text = f"this process was suspended for so long that another run has taken over its workdir: {other}. It ends here"
    heartbeat_monitor.reserve_exit()
    heartbeat_monitor.announce_failure(text)
    print(f"tfdist: {text}.", file=sys.stderr, flush=True)
    interruption.end_process(1)


def _open_ledger(run: Run, state: TrainingState) -> Ledger:
    """Opens the ledger of this start, in the workdir on the chief."""
    cluster = run.cluster
    about = {"job": slurm_job.job_id(os.environ) or "", "host": socket.gethostname(), "replicas": cluster.num_replicas}
    about |= {"workers": cluster.num_workers, "steps_per_epoch": run.steps_per_epoch, "total_steps": run.total_steps}
    workdir = run.workdir if cluster.is_chief else None
    return ledger_lib.open_ledger(workdir, state.step, about)


def make_services(
    run: Run,
    report: Reporter,
    checkpointer: AsyncCheckpointer | None,
    lock: WorkdirLock | None = None,
    ledger: Ledger | None = None,
) -> LoopServices:
    """Makes the objects that the loop uses."""
    return LoopServices(
        run=run,
        report=report,
        checkpointer=checkpointer,
        lock=lock,
        train_runner=execution.make_train_runner(run),
        evaluation_runner=execution.make_evaluation_runner(run),
        ledger=Ledger() if ledger is None else ledger,
        loop_actions=[action for feature in features.ALL for action in feature.loop_actions(run, report)],
    )


def make_silent_services(run: Run) -> LoopServices:
    """As `make_services`, but without reports: for an evaluation whose values are returned to the caller."""
    return make_services(run, report_run.make_report(run, None), None)
