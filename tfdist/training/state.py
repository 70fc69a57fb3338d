"""UNDOCUMENTED."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import async_writer
from tfdist.report.reporter import Reporter
from tfdist.training import replica_consistency, tensorboard_extras, triggers
from tfdist.training import run as run_lib
from tfdist.training.step import context, timing


@dataclasses.dataclass(slots=True, kw_only=True)
class TrainingState:
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
class StepRunner:
    """Makes the compiled calls of one kind, and keeps their pace."""

    run: run_lib.Run
    call: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    pace: triggers.ExecutionLength
    # Of each replica since they were taken last, float64 [num_replicas, 3]; see timing.py.
    seconds: np.ndarray

    def __call__(self, iterator: Any, most: int) -> tuple[int, dict[str, float]]:
        """Runs up to `most` steps; returns how many, and the sums over all replicas: the same on every worker."""
        steps = self.pace.next_steps(most)
        asked = tf.constant(float(self.run.stop.asked()), tf.float64)
        sums, replica_seconds = self.call(iterator, tf.constant(steps, tf.int64), asked)
        totals = dict(zip((*self.run.trainer.names, *context.EXTRAS), sums.numpy().tolist(), strict=True))
        self.seconds += replica_seconds.numpy()
        seconds = totals["seconds"] / self.run.cluster.num_replicas
        self.pace.measured(steps, seconds)
        if self.pace.calls > 1:  # The first compiles.
            self.run.stop.call_seconds = max(self.run.stop.call_seconds, seconds)
        return steps, totals

    def take_shares(self) -> list[tuple[float, float, float]]:
        """What each worker did with its time since this was called last: parts of input, compute, communication."""
        seconds, self.seconds = self.seconds, np.zeros_like(self.seconds)
        return timing.time_shares(seconds, self.run.cluster.num_workers)


@dataclasses.dataclass(slots=True, kw_only=True)
class LoopTools:
    """The tools of the loop, made once."""

    run: run_lib.Run
    report: Reporter
    # None on all workers but the chief.
    saver: async_writer.AsyncCheckpointer | None
    train_call: StepRunner
    evaluation_call: StepRunner
    # Whether all variables are finite.
    is_finite: Callable[[], bool]
    # Whether all replicas hold the same state.
    agreement: replica_consistency.ReplicaConsistencyCheck
    # What TensorBoard shows besides scalars.
    board: tensorboard_extras.TensorBoardExtras


def save_is_due(run: run_lib.Run, now: int) -> bool:
    """Whether the config asks for a checkpoint after step `now`, whatever an evaluation may say."""
    begins = now == 0 and run.config.train.nonfinite == "rollback"  # There must be something to go back to.
    return begins or ends(run, now) or triggers.is_due(run.config.checkpoint.every, now, run.steps_per_epoch)


def ends(run: run_lib.Run, now: int) -> bool:
    """Whether the run ends after step `now`: it is the last, or a callback has asked for the end."""
    return now == run.total_steps or run.callbacks.stop()
