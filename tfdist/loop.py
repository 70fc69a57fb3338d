"""The tools of the loop, made once, and where it stands."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import agreement, board, experiment, intervals, local_sgd, step, timing
from tfdist.checkpoint import async_writer, directory
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import slurm_requeue
from tfdist.report import reporter as reporter_lib
from tfdist.report import run_info
from tfdist.report.reporter import Reporter

# At which a checkpoint is thought to be written until one has been.
_SLOW_BYTES_PER_SECOND = 20e6


@dataclasses.dataclass(slots=True, kw_only=True)
class Progress:
    """Where the loop stands: all that a checkpoint holds besides the variables."""

    step: int = 0
    # The step that was evaluated last.
    evaluated: int = 0
    # The best value of `checkpoint.best_metric` so far, and its step.
    best: float | None = None
    best_step: int = 0
    # The newest step that was saved because the config asks for it; how many updates were left out since the run began,
    # and how often it went back.
    regular: int = 0
    skipped: int = 0
    rollbacks: int = 0
    # Epochs that have ended; of the one that was begun last, sums over its examples, and its values so far.
    epochs: int = 0
    epoch_totals: dict[str, float] = dataclasses.field(default_factory=dict)
    logs: dict[str, float] = dataclasses.field(default_factory=dict)
    # Of a compiled model: its metrics' variables within an epoch.
    metrics: list[Any] = dataclasses.field(default_factory=list)
    # What the callbacks remember.
    callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)
    # Since the last report: sums over examples, seconds and steps.
    totals: dict[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Caller:
    """Makes the compiled calls of one kind, and keeps their pace."""

    run: experiment.Run
    call: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    pace: intervals.Pace
    # Of each replica since they were taken last, float64 [num_replicas, 3]; see timing.py.
    seconds: np.ndarray

    def __call__(self, iterator: Any, most: int) -> tuple[int, dict[str, float]]:
        """Runs up to `most` steps; returns how many, and the sums over all replicas: the same on every worker."""
        steps = self.pace.next_steps(most)
        asked = tf.constant(float(self.run.stop.asked()), tf.float64)
        sums, replica_seconds = self.call(iterator, tf.constant(steps, tf.int64), asked)
        totals = dict(zip((*self.run.trainer.names, *step.EXTRAS), sums.numpy().tolist(), strict=True))
        self.seconds += replica_seconds.numpy()
        seconds = totals["seconds"] / self.run.cluster.num_replicas
        self.pace.measured(steps, seconds)
        if self.pace.calls > 1:  # The first compiles.
            self.run.stop.call_seconds = max(self.run.stop.call_seconds, seconds)
        return steps, totals

    def take_shares(self) -> list[tuple[float, float, float]]:
        """What each worker did with its time since this was called last: parts of input, compute, communication."""
        seconds, self.seconds = self.seconds, np.zeros_like(self.seconds)
        return timing.shares(seconds, self.run.cluster.num_workers)


@dataclasses.dataclass(slots=True, kw_only=True)
class Loop:
    """The tools of the loop, made once."""

    run: experiment.Run
    report: Reporter
    # None on all workers but the chief.
    saver: async_writer.Saver | None
    train_call: Caller
    evaluation_call: Caller
    # Whether all variables are finite.
    is_finite: Callable[[], bool]
    # Whether all replicas hold the same state.
    agreement: agreement.Agreement
    # What TensorBoard shows besides scalars.
    board: board.Board


def open_loop(run: experiment.Run) -> tuple[Loop, Progress]:
    """Restores the newest checkpoint on every worker, and opens the report and the saver on the chief."""
    saved, damaged = None, []
    progress = Progress(step=run.first_step, evaluated=run.first_step, epochs=run.first_step // run.steps_per_epoch)
    if run.workdir is None:
        run.hooks.train_begin()
        return make_loop(run, open_reporter(run, None), None), progress
    if run.cluster.is_chief:
        saved = checkpoint_format.newest_valid(run.checkpoints, damaged.append)
    chosen = run.cluster.from_chief(-1 if saved is None else saved.step)
    if chosen >= 0:
        saved = saved or checkpoint_format.verify(directory.step_path(run.checkpoints, chosen))
        progress = Progress(**saved.state)
        begin_hooks(run, progress)
        checkpoint_format.restore(saved, run.variables)
        if progress.callbacks:
            run.hooks.resume(progress.callbacks, checkpoint_format.callbacks_arrays(saved))
        if run.compiled is not None and progress.metrics:
            run.compiled.restore_metrics(progress.metrics)
    else:
        run.hooks.train_begin()
    reporter = open_reporter(run, str(run.workdir), resume_step=progress.step, resume_evaluated=progress.evaluated)
    for text in damaged:
        reporter.warning(text)
    saver = None
    if run.cluster.is_chief:
        saver = async_writer.Saver(run.checkpoints, run.config.checkpoint, reporter.warning)
        saver.tidy(saved)
        unmeasured = checkpoint_format.num_bytes(run.variables) / _SLOW_BYTES_PER_SECOND
        run.stop.save_seconds = lambda: saver.seconds or unmeasured
        run_info.write_config(str(run.workdir), run.config)
        run_info.write_environment(str(run.workdir), {"workers": list(run.cluster.roster)})
        if saved is not None:
            ended = run.compiled is not None and (progress.step >= run.total_steps or run.hooks.stop())
            advice = ", where the run ends: more epochs go on from there, another workdir begins anew" if ended else ""
            reporter.event(f"resumed from {saved.path}{advice}", saved.step)
            if progress.best_step == saved.step:  # Killed in between, a run has saved it and not yet marked it.
                saver.mark_best(saved.step, run.config.checkpoint.best_metric, progress.best)
    if run.config.cluster.requeue:
        slurm_requeue.allow(
            run.cluster.rank, run.stop, lambda: (directory.newest_step(run.checkpoints) or 0) > max(chosen, 0)
        )
    return make_loop(run, reporter, saver), progress


def save_is_due(run: experiment.Run, now: int) -> bool:
    """Whether the config asks for a checkpoint after step `now`, whatever an evaluation may say."""
    begins = now == 0 and run.config.train.nonfinite == "rollback"  # There must be something to go back to.
    return begins or ends(run, now) or intervals.is_due(run.config.checkpoint.every, now, run.steps_per_epoch)


def ends(run: experiment.Run, now: int) -> bool:
    """Whether the run ends after step `now`: it is the last, or a callback has asked for the end."""
    return now == run.total_steps or run.hooks.stop()


def begin_hooks(run: experiment.Run, progress: Progress) -> None:
    """Tells the callbacks that a resumed run begins; what they do to variables, the checkpoint undoes."""
    has_ended = progress.step <= progress.epochs * run.steps_per_epoch
    run.hooks.train_begin(progress.callbacks, None if has_ended else (progress.step - 1) // run.steps_per_epoch)


def open_reporter(run: experiment.Run, workdir: str | None, **resumed: int) -> Reporter:
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
        console=run.hooks.console,
        **resumed,
    )
    reporter.workers(list(run.cluster.roster))
    for note in run.notes if run.cluster.is_chief else ():
        reporter.warning(note)
    return reporter


def silent_loop(run: experiment.Run) -> Loop:
    """The tools of an evaluation whose values go to the caller alone."""
    reporter = Reporter(
        rank=run.cluster.rank,
        num_replicas=run.cluster.num_replicas,
        steps_per_epoch=run.steps_per_epoch,
        global_batch=run.batch_size,
        console=None,
    )
    return make_loop(run, reporter, None)


def make_loop(run: experiment.Run, reporter: Reporter, saver: async_writer.Saver | None) -> Loop:
    """Puts the tools of the loop together."""
    return Loop(
        run=run,
        report=reporter,
        saver=saver,
        train_call=make_caller(run, local_sgd.choose_step(run.config.train)),
        evaluation_call=make_caller(run, step.evaluation_step),
        is_finite=checkpoint_format.finite_check(run.variables),
        agreement=agreement.agreement(run.cluster, run.variables),
        board=board.Board(run=run, report=reporter),
    )


def make_caller(run: experiment.Run, replica_step: Callable[..., tf.Tensor]) -> Caller:
    """Makes the calls of one kind: `step.train_step` or `step.evaluation_step`."""
    call = step.make_call(run.trainer, functools.partial(replica_step, run.trainer))
    seconds = np.zeros([run.cluster.num_replicas, len(timing.COLUMNS)])
    return Caller(run=run, call=call, pace=intervals.Pace(run.config.train.call_seconds), seconds=seconds)
