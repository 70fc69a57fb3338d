"""The tools of the loop, made once, and where it stands."""

import dataclasses
import functools
import json
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import async_writer, directory, export
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import slurm_requeue
from tfdist.config import diff
from tfdist.report import files, run_info
from tfdist.report import reporter as reporter_lib
from tfdist.report.reporter import Reporter
from tfdist.training import nonfinite, replica_consistency, tensorboard_extras, triggers
from tfdist.training import run as run_lib
from tfdist.training.state import LoopTools, StepRunner, TrainingState
from tfdist.training.step import local_sgd, multi_step, timing, train_step


def save(loop: LoopTools, progress: TrainingState, *, regular: bool) -> None:
    """Begins to save the run as it is now; the chief alone writes, while training goes on.

    Args:
        regular: whether the config asks for it, and not a stop.

    Raises:
        DivergedError: the weights are no longer finite.
    """
    run = loop.run
    if not loop.is_finite():  # Asked on every worker, which all find the same.
        raise nonfinite.diverged(loop, f"The weights are no longer finite after step {progress.step}")
    if regular:
        progress.regular = progress.step
    if run.compiled is not None:
        within_epoch = progress.step % run.steps_per_epoch != 0
        progress.metrics = run.compiled.metric_values() if within_epoch else []  # Read on every worker.
    if loop.saver is not None:
        progress.callbacks, arrays = run.callbacks.state()
        loop.saver.save(progress.step, checkpoint_format.snapshot(run.variables) | arrays, dataclasses.asdict(progress))


# At which a checkpoint is thought to be written until one has been.
_SLOW_BYTES_PER_SECOND = 20e6


def open_loop(run: run_lib.Run) -> tuple[LoopTools, TrainingState]:
    """Restores the newest checkpoint on every worker, and opens the report and the saver on the chief."""
    saved, damaged = None, []
    progress = TrainingState(
        step=run.first_step, evaluated=run.first_step, epochs=run.first_step // run.steps_per_epoch
    )
    if run.workdir is None:
        run.callbacks.train_begin()
        return make_loop(run, open_reporter(run, None), None), progress
    if run.cluster.is_chief:
        saved = checkpoint_format.newest_valid(run.checkpoints, damaged.append)
    chosen = run.cluster.broadcast(-1 if saved is None else saved.step)
    if chosen >= 0:
        saved = saved or checkpoint_format.verify(directory.step_path(run.checkpoints, chosen))
        progress = TrainingState(**saved.state)
        begin_callbacks(run, progress)
        checkpoint_format.restore(saved, run.variables)
        if progress.callbacks:
            run.callbacks.resume(progress.callbacks, checkpoint_format.callbacks_arrays(saved))
        if run.compiled is not None and progress.metrics:
            run.compiled.restore_metrics(progress.metrics)
    else:
        run.callbacks.train_begin()
    reporter = open_reporter(run, str(run.workdir), resume_step=progress.step, resume_evaluated=progress.evaluated)
    for text in damaged:
        reporter.warning(text)
    saver = None
    if run.cluster.is_chief:
        saver = async_writer.AsyncCheckpointer(run.checkpoints, run.config.checkpoint, reporter.warning)
        saver.remove_partial(saved)
        unmeasured = checkpoint_format.num_bytes(run.variables) / _SLOW_BYTES_PER_SECOND
        run.stop.save_seconds = lambda: saver.longest_write_seconds or unmeasured
        run_info.write_config(str(run.workdir), run.config)
        run_info.write_environment(str(run.workdir), {"workers": list(run.cluster.roster)})
        if saved is not None:
            ended = run.compiled is not None and (progress.step >= run.total_steps or run.callbacks.stop())
            advice = ", where the run ends: more epochs go on from there, another workdir begins anew" if ended else ""
            reporter.event(f"resumed from {saved.path}{advice}", saved.step)
            if progress.best_step == saved.step:  # Killed in between, a run has saved it and not yet marked it.
                saver.mark_best(saved.step, run.config.checkpoint.best_metric, progress.best)
    if run.config.cluster.requeue:
        slurm_requeue.enable_requeue(
            run.cluster.rank, run.stop, lambda: (directory.newest_step(run.checkpoints) or 0) > max(chosen, 0)
        )
    return make_loop(run, reporter, saver), progress


def begin_callbacks(run: run_lib.Run, progress: TrainingState) -> None:
    """Tells the callbacks that a resumed run begins; what they do to variables, the checkpoint undoes."""
    has_ended = progress.step <= progress.epochs * run.steps_per_epoch
    run.callbacks.train_begin(progress.callbacks, None if has_ended else (progress.step - 1) // run.steps_per_epoch)


def open_reporter(run: run_lib.Run, workdir: str | None, **resumed: int) -> Reporter:
    """Opens the report of `run`; see `report.open_report` for `workdir` and `resumed`."""
    reporter = reporter_lib.open_report(
        workdir,
        chief=run.cluster.is_chief,
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        total_steps=run.total_steps,
        steps_per_epoch=run.steps_per_epoch,
        global_batch=run.batch_size,
        tensorboard=run.config.report.tensorboard,
        console=run.callbacks.console,
        **resumed,
    )
    reporter.workers(list(run.cluster.roster))
    for note in run.notes if run.cluster.is_chief else ():
        reporter.warning(note)
    return reporter


def silent_loop(run: run_lib.Run) -> LoopTools:
    """The tools of an evaluation whose values go to the caller alone."""
    reporter = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        global_batch=run.batch_size,
        console=None,
    )
    return make_loop(run, reporter, None)


def make_loop(run: run_lib.Run, reporter: Reporter, saver: async_writer.AsyncCheckpointer | None) -> LoopTools:
    """Puts the tools of the loop together."""
    return LoopTools(
        run=run,
        report=reporter,
        saver=saver,
        train_call=make_runner(run, local_sgd.choose_step(run.config.train)),
        evaluation_call=make_runner(run, train_step.evaluation_step),
        is_finite=nonfinite.finite_check(run.variables),
        agreement=replica_consistency.make_check(run.cluster, run.variables),
        board=tensorboard_extras.TensorBoardExtras(run=run, report=reporter),
    )


def make_runner(run: run_lib.Run, replica_step: Callable[..., tf.Tensor]) -> StepRunner:
    """Makes the calls of one kind: `step.train_step` or `step.evaluation_step`."""
    call = multi_step.make_multi_step_fn(run.trainer, functools.partial(replica_step, run.trainer))
    seconds = np.zeros([run.cluster.num_replicas, len(timing.COLUMNS)])
    return StepRunner(run=run, call=call, pace=triggers.ExecutionLength(run.config.train.call_seconds), seconds=seconds)


FINISHED = "finished.json"


def await_saved(loop: LoopTools, progress: TrainingState) -> None:
    """Waits until the last checkpoint is written.

    Raises:
        OSError: it could not be.
    """
    if loop.saver is not None and not loop.saver.wait():
        raise OSError(f"The last checkpoint, of step {progress.step}, could not be written: the run is not saved.")


def close(loop: LoopTools) -> None:
    """Ends what the loop writes; however the run ends, the checkpoint that is being written shall be whole."""
    if loop.saver is not None:
        loop.saver.wait()
    loop.board.close()
    loop.report.close()


def is_finished(run: run_lib.Run) -> bool:
    """Whether the workdir's run has come to its end, and that is not before the end that the config sets now."""
    if run.workdir is None:
        return False
    path = run.workdir / FINISHED
    if not path.exists():
        return False
    finished = json.loads(path.read_text())
    return finished["step"] >= run.total_steps or finished.get("stopped_by_callback", False)


def check_same_config(run: run_lib.Run, allow_changes: bool) -> None:
    """Refuses to go on with a run of another config.

    Raises:
        ValueError: names every field that differs, with both values.
    """
    old = None if run.workdir is None else run_info.read_config(str(run.workdir))
    if old is None or allow_changes:
        return
    lines = diff.differences(old, run_info.to_json(run.config))
    if run.compiled is not None:  # A script's learning rate does not hang on its length, which may grow.
        lines = [line for line in lines if not line.startswith("train.epochs:")]
    if lines:
        raise ValueError(
            f"{run.workdir} holds a run of another config:\n"
            + "".join(f"  config.{line}\n" for line in lines)
            + "Choose another --workdir, or go on with the new values with --allow_config_changes."
        )


def finish(loop: LoopTools, progress: TrainingState) -> None:
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
