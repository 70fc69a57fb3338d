"""Executions: TensorFlow calls that run several steps, for about `config.train.call_seconds`."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.devices import replicas
from tfdist.data import guard
from tfdist.training import triggers
from tfdist.training.run import Run
from tfdist.training.step import multi_step, timing, train_step

# See `multi_step.make_multi_step_fn`.
RunSteps = Callable[..., tuple[tf.Tensor, tf.Tensor]]


class StopRequested(Exception):
    """All workers agreed to stop: one received a signal, or its time limit is near. In training, the caller saves."""


class DivergedError(ArithmeticError):
    """The loss, a gradient or a weight is non-finite."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of one execution; the same on every worker."""

    steps: int
    # Sums over all replicas: the objective's values, `objective.COUNTS` and `objective.MEASUREMENTS`.
    totals: dict[str, float]

    @property
    def skipped_steps(self) -> int:
        return round(self.totals["skipped"])

    @property
    def steps_before_skip(self) -> int:
        """The steps before the first skipped one."""
        return round(self.totals["steps_before_skip"])

    @property
    def stop_requested(self) -> bool:
        """Whether any worker requests a stop; equal on all workers."""
        return self.totals["stop"] > 0


@dataclasses.dataclass(slots=True, kw_only=True)
class StepRunner:
    """Runs training executions or evaluation executions, and chooses their length."""

    run: Run
    # "train" or "test".
    kind: str
    run_steps: RunSteps
    length: triggers.ExecutionLength
    # Seconds since the last `pop_time_fractions`, float64 [num_replicas, 3]: input, communication, total.
    seconds: np.ndarray

    def execute(self, iterator: Any, max_steps: int, first: int = 0) -> Execution:
        """Runs up to `max_steps` steps; `first`: the index of the first batch of an evaluation."""
        steps = self.length.choose_steps(max_steps)
        stop = tf.constant(float(self.run.stop.poll()), tf.float64)
        with self.run.cluster.monitor.in_collective("an execution"):
            args = (iterator, tf.constant(steps), stop, tf.constant(first))
            vector, replica_seconds = self.run.call_steps(self.kind, self.run_steps, *args)
            totals = dict(zip(self.run.context.names_of_execution, vector.numpy().tolist(), strict=True))
        self.seconds += replica_seconds.numpy()
        seconds = totals["seconds"] / self.run.cluster.num_replicas
        self.length.record(steps, seconds)
        if self.length.executions > 1:  # The first one compiles.
            self.run.stop.execution_seconds = max(self.run.stop.execution_seconds, seconds)
        return Execution(steps=steps, totals=totals)

    def pop_time_fractions(self) -> list[tuple[float, float, float]]:
        """Returns each worker's fractions of time for input, compute and communication since the last call.

        Empty if steps are not timed.
        """
        if not self.run.context.times_steps:
            return []
        seconds, self.seconds = self.seconds, np.zeros_like(self.seconds)
        return timing.time_fractions(seconds, self.run.cluster.num_workers)


def make_train_runner(run: Run) -> StepRunner:
    """Makes the runner of training executions."""
    step = run.feed.with_known_shapes(run.train_step)
    step = functools.partial(_guard(run, step, "The training step"), run.context)
    return _make_runner(run, "train", multi_step.make_multi_step_fn(run.context, step, trains=True))


def make_evaluation_runner(run: Run) -> StepRunner:
    """Makes the runner of evaluation executions."""
    step = _guard(run, train_step.evaluation_step, "The evaluation")
    run_steps = multi_step.make_multi_step_fn(run.context, functools.partial(step, run.context), trains=False)
    return _make_runner(run, "test", run_steps)


def _guard(run: Run, step: Callable[..., tf.Tensor], name: str) -> Callable[..., tf.Tensor]:
    """Returns `step` with a check of what it writes: only variables that checkpoints hold or the run resets."""

    def may_write() -> dict[int, bool]:
        """Returns, by id of the handle, whether a step may write a variable; False: only callbacks may."""
        context = run.context
        written = [
            *(*run.variables.values(), context.totals, context.reduction.seconds, *context.model.metrics_variables),
            *(ring.count for ring in replicas.rings),
            *run.objective.variables(),
        ]
        return {
            id(local.handle): by_step
            for variables, by_step in ((run.hooks.saved_variables, False), (written, True))
            for variable in map(checkpoint_format.tf_variable, variables)
            for local in run.cluster.strategy.experimental_local_results(variable)
        }

    return guard.around(step, name, may_write, draws=run.checks_draws)


def _make_runner(run: Run, kind: str, run_steps: RunSteps) -> StepRunner:
    seconds = np.zeros([run.cluster.num_replicas, len(timing.COLUMNS)])
    length = triggers.ExecutionLength(run.config.train.call_seconds)
    return StepRunner(run=run, kind=kind, run_steps=run_steps, length=length, seconds=seconds)
