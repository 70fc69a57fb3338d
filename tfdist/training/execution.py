"""Executions: calls that run several steps each, as long as `config.train.call_seconds`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.training import triggers
from tfdist.training.run import Run
from tfdist.training.step import multi_step, timing


class StopRequested(Exception):
    """All workers agreed to stop: a worker received a signal, or its time limit is near. The run must be saved."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one execution; the same on every worker."""

    steps: int
    # Over all replicas: sums over examples by the objective's names, and those of `objective.COUNTS` and
    # `objective.MEASUREMENTS`.
    totals: dict[str, float]

    @property
    def skipped_steps(self) -> int:
        """The number of steps that were skipped."""
        return round(self.totals["skipped"])

    @property
    def steps_before_skip(self) -> int:
        """The number of steps before the first one that was skipped."""
        return round(self.totals["clean"])

    @property
    def stop_requested(self) -> bool:
        """Whether any worker requests a stop: all workers agree on it."""
        return self.totals["stop"] > 0


@dataclasses.dataclass(slots=True, kw_only=True)
class StepRunner:
    """Runs executions of one kind, training or evaluation, and chooses their length."""

    run: Run
    run_steps: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    length: triggers.ExecutionLength
    # Seconds of each replica since `take_shares`: float64 [num_replicas, 3]; see timing.py.
    seconds: np.ndarray

    def __call__(self, iterator: Any, most: int, first: int = 0) -> Execution:
        """Runs up to `most` steps; `first`: the index of the first batch of an evaluation."""
        steps = self.length.next_steps(most)
        stop = tf.constant(float(self.run.stop.requested()), tf.float64)
        with self.run.cluster.collective("an execution"), self.run.execution_context():
            vector, replica_seconds = self.run_steps(iterator, tf.constant(steps), stop, tf.constant(first))
            totals = self.run.context.execution_layout.to_dict(vector)
        self.seconds += replica_seconds.numpy()
        seconds = totals["seconds"] / self.run.cluster.num_replicas
        self.length.measured(steps, seconds)
        if self.length.executions > 1:  # The first one compiles.
            self.run.stop.call_seconds = max(self.run.stop.call_seconds, seconds)
        return Execution(steps=steps, totals=totals)

    def take_shares(self) -> list[tuple[float, float, float]]:
        """Returns each worker's fractions of time for input, compute and communication since the last call.

        Empty if steps are not timed.
        """
        if not self.run.context.times_steps:
            return []
        seconds, self.seconds = self.seconds, np.zeros_like(self.seconds)
        return timing.time_shares(seconds, self.run.cluster.num_workers)


def make_runner(run: Run, replica_step: Callable[..., tf.Tensor], updates: int | None = None) -> StepRunner:
    """Makes the runner of `train_step.train_step`, `local_sgd.train_round` or `train_step.evaluation_step`.

    Args:
        updates: see `multi_step.make_multi_step_fn`; 0 for an evaluation.
    """
    run_steps = multi_step.make_multi_step_fn(run.context, functools.partial(replica_step, run.context), updates)
    seconds = np.zeros([run.cluster.num_replicas, len(timing.COLUMNS)])
    length = triggers.ExecutionLength(run.config.train.call_seconds)
    return StepRunner(run=run, run_steps=run_steps, length=length, seconds=seconds)
