"""Executions: calls of several steps, as long as `config.train.call_seconds`."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.data import stateful_ops
from tfdist.training import triggers
from tfdist.training.run import Run
from tfdist.training.step import multi_step, timing, train_step
from tfdist.training.step.random_numbers import stateful_random

# See `multi_step.make_multi_step_fn`.
RunSteps = Callable[..., tuple[tf.Tensor, tf.Tensor]]


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
        return round(self.totals["steps_before_skip"])

    @property
    def stop_requested(self) -> bool:
        """Whether any worker requests a stop: all workers agree on it."""
        return self.totals["stop"] > 0


@dataclasses.dataclass(slots=True, kw_only=True)
class StepRunner:
    """Runs executions of one kind, training or evaluation, and chooses their length."""

    run: Run
    run_steps: RunSteps
    length: triggers.ExecutionLength
    # Seconds of each replica since `pop_time_fractions`: float64 [num_replicas, 3]; see timing.py.
    seconds: np.ndarray

    def __call__(self, iterator: Any, max_steps: int, first: int = 0) -> Execution:
        """Runs up to `max_steps` steps; `first`: the index of the first batch of an evaluation."""
        steps = self.length.next_steps(max_steps)
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

    def pop_time_fractions(self) -> list[tuple[float, float, float]]:
        """Returns each worker's fractions of time for input, compute and communication since the last call.

        Empty if steps are not timed.
        """
        if not self.run.context.times_steps:
            return []
        seconds, self.seconds = self.seconds, np.zeros_like(self.seconds)
        return timing.time_fractions(seconds, self.run.cluster.num_workers)


def training_steps(run: Run) -> StepRunner:
    """Puts together the function of a training execution, from the step of a replica outwards."""
    step = run.feed.with_known_shapes(run.train_step)
    step = functools.partial(stateful_random.check_draws(step, run.cluster, "training step"), run.context)
    run_steps = multi_step.make_multi_step_fn(run.context, step, updates=run.config.train.local_steps)
    return _make_runner(run, refuse_unsaved(run, run_steps))


def evaluation_steps(run: Run, keep: Callable[[RunSteps], RunSteps] | None = None) -> StepRunner:
    """Puts together the function of an execution of evaluation steps; `keep` may return one that was made before."""
    step = stateful_random.check_draws(train_step.evaluation_step, run.cluster, "evaluation")
    run_steps = multi_step.make_multi_step_fn(run.context, functools.partial(step, run.context), updates=0)
    return _make_runner(run, run_steps if keep is None else keep(run_steps))


def _make_runner(run: Run, run_steps: RunSteps) -> StepRunner:
    seconds = np.zeros([run.cluster.num_replicas, len(timing.COLUMNS)])
    length = triggers.ExecutionLength(run.config.train.call_seconds)
    return StepRunner(run=run, run_steps=run_steps, length=length, seconds=seconds)


def refuse_unsaved(run: Run, run_steps: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `run_steps`, a `tf.function`, whose graph is checked after its first call.

    A resumed run would not have the values of variables that no checkpoint holds. Those that the graph only reads are
    watched: a callback may change them.

    Raises:
        ValueError: in the first call; names the variables that the graph writes and no checkpoint of `run` holds.
    """
    unchecked = [True]

    @functools.wraps(run_steps, updated=())
    def checked(*args: Any) -> Any:
        result = run_steps(*args)
        if unchecked:
            unchecked.clear()
            if not tf.config.functions_run_eagerly():
                _check_unsaved(run, run_steps.get_concrete_function(*args).graph)
        return result

    return checked


def _check_unsaved(run: Run, graph: Any) -> None:
    written = stateful_ops.written_inputs(graph)
    known = {id(handle) for handle in _known_handles(run)}
    captured = {id(external): inside.op.name for external, inside in graph.captures if id(external) not in known}
    handles = [one for one, name in captured.items() if name in written]
    if handles:
        names = {id(one.handle): one.name.partition("/replica_")[0].partition(":")[0] for one in graph.variables}
        found = ", ".join(sorted({names.get(one, "one without a name") for one in handles}))
        raise ValueError(
            f"The training step writes variables that belong neither to the model nor to its optimizer: {found}. "
            "No checkpoint holds them and replicas do not share them: a resumed run would be another run. Make each in "
            "a layer: add_weight(..., trainable=False), or a keras.Variable or SeedGenerator in an attribute."
        )
    held = {id(handle) for handle in _handles(run, run.callbacks.held)}
    run.callbacks.watch([one for one in graph.variables if id(one.handle) in captured.keys() - held])


def _known_handles(run: Run) -> Iterator[tf.Tensor]:
    """Yields the handles of this worker's copies of all variables that a step may write."""
    context = run.context
    known = [*run.variables.values(), context.totals, context.reduction.seconds, *context.model.metrics_variables]
    state = getattr(context.objective, "metric_state", None)
    known += [] if state is None else state.variables()
    yield from _handles(run, known)


def _handles(run: Run, variables: Iterable[Any]) -> Iterator[tf.Tensor]:
    for variable in map(checkpoint_format.tf_variable, variables):
        yield from (local.handle for local in run.cluster.strategy.experimental_local_results(variable))
