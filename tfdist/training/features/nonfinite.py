"""`config.train.nonfinite`: a loss or gradient that is not finite ends the run, or its step is skipped.

A weight that is not finite always ends it. Decisions use values that are equal on all workers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tfdist.checkpoint import directory
from tfdist.cluster.control import heartbeat_monitor
from tfdist.config.schema import Config
from tfdist.training.loop_services import LoopAction, LoopServices

if TYPE_CHECKING:
    from tfdist.report.reporter import Reporter
    from tfdist.training.execution import DivergedError, Execution
    from tfdist.training.run import Run
    from tfdist.training.state import TrainingState


def find_errors(config: Config) -> Iterator[str]:
    """Yields an error if the limit is not a valid number of steps."""
    if not 1 <= config.train.nonfinite_limit < 2**31:
        yield f"train.nonfinite_limit must be from 1 to 2**31 - 1. Received: {config.train.nonfinite_limit}"


def apply(run: Run) -> Run:
    """Returns `run`; for "skip", its steps skip updates that are not finite."""
    if run.config.train.nonfinite != "skip":
        return run
    return dataclasses.replace(run, context=dataclasses.replace(run.context, skips_nonfinite=True))


def loop_actions(run: Run, report: Reporter) -> list[FiniteCheck]:
    """Returns the object that checks losses after each execution, and weights before each save."""
    return [FiniteCheck(skips=run.context.skips_nonfinite, worker_check=make_worker_check(run.variables))]


@dataclasses.dataclass(slots=True, kw_only=True)
class FiniteCheck(LoopAction):
    """Ends the run with DivergedError, or counts skipped steps."""

    skips: bool
    # Returns the name of a variable that is not finite on this worker; "": there is none.
    worker_check: Callable[[], str]

    def after_execution(self, services: LoopServices, state: TrainingState, execution: Execution) -> None:
        """Checks the loss, or counts the steps that were skipped."""
        if self.skips:
            _count_skipped(services, state, execution)
            return
        loss, first_number = execution.totals["loss"], state.step - execution.steps + 1
        in_epoch = (state.step - 1) % services.run.steps_per_epoch
        if not math.isfinite(loss) and not services.run.hooks.nonfinite_loss(in_epoch, loss):
            steps = f"steps {first_number} to {state.step}" if execution.steps > 1 else f"step {state.step}"
            raise make_diverged_error(services, f"The loss is {loss} in {steps}", (first_number, state.step))
        if execution.skipped_steps:  # In float16, if a gradient is not finite with any loss scale.
            bad_step = _bad_step(state, execution)
            raise make_diverged_error(services, _bad_step_text(bad_step), (bad_step, bad_step))

    def check(self, services: LoopServices, state: TrainingState) -> None:
        """Raises DivergedError if a variable is not finite on any worker. Collective."""
        run, name = services.run, self.worker_check()
        if run.cluster.any_worker(bool(name)):
            name = next(filter(None, run.cluster.all_gather_text(name)))
            checked = None if run.workdir is None else directory.newest_step(run.checkpoints)
            first = min((checked or run.feed.sizes.first_step) + 1, state.step)
            text = f"The variable {name} is not finite after step {state.step}"
            raise make_diverged_error(services, text, (first, state.step))


def _count_skipped(services: LoopServices, state: TrainingState, execution: Execution) -> None:
    skipped, limit = execution.skipped_steps, services.run.config.train.nonfinite_limit
    if not skipped:
        return
    state.skipped += skipped
    bad_step = _bad_step(state, execution)
    text = _bad_step_text(bad_step)
    if skipped > 1:
        text = f"The losses or gradients of {skipped} of the steps {bad_step} to {state.step} are not finite"
    if state.skipped > limit:
        too_many = f"{state.skipped} updates, more than config.train.nonfinite_limit={limit}"
        raise make_diverged_error(services, f"{text}: {too_many}, would be skipped", (bad_step, bad_step))
    services.report.event(f"WARNING: {text}. Skipped: {state.skipped} updates in all, of at most {limit}", state.step)


def _bad_step(state: TrainingState, execution: Execution) -> int:
    return state.step - execution.steps + 1 + execution.steps_before_skip


def _bad_step_text(step: int) -> str:
    return f"The loss or a gradient is not finite in step {step}"


def make_worker_check(variables: Mapping[str, Any]) -> Callable[[], str]:
    """Makes a function that returns the name of a non-finite variable on this worker; "": there is none.

    A variable that is infinite at this call, such as a mask with -inf, may stay infinite, but must not become NaN.
    """
    import tensorflow as tf

    from tfdist.checkpoint import format as checkpoint_format

    values = [(name, checkpoint_format.tf_variable(variable)) for name, variable in variables.items()]
    floats = [(name, value) for name, value in values if value.dtype.is_floating]
    infinite = tf.stack([tf.reduce_any(tf.math.is_inf(value)) for _, value in floats]).numpy()

    def check() -> str:  # Eager, because tracing a graph for hundreds of variables takes seconds.
        found = zip(floats, infinite, strict=True)
        bad = [tf.reduce_any(tf.math.is_nan(v) if allowed else ~tf.math.is_finite(v)) for (_, v), allowed in found]
        return next((name for (name, _), one in zip(floats, tf.stack(bad).numpy(), strict=True) if one), "")

    return check


def make_diverged_error(services: LoopServices, text: str, steps: tuple[int, int] | None = None) -> DivergedError:
    """Makes the error that ends a diverged run. Every worker calls it.

    Args:
        steps: the first and last step, counted from 1, whose data may be the cause; None: unknown.
    """
    from tfdist.training.consistency import example_search
    from tfdist.training.execution import DivergedError

    run = services.run
    in_data = "" if steps is None else _search_data(services, *steps) or example_search.label_out_of_range(run)
    if services.checkpointer is not None:
        services.checkpointer.wait_until_idle(heartbeat_monitor.writing_seconds())
    saved = None if run.workdir is None else directory.newest_step(run.checkpoints)
    kept = "There is no checkpoint yet" if saved is None else f"The checkpoint of step {saved} is kept"
    if run.workdir is None:
        kept = "Nothing is saved without a workdir"
    where = f": {in_data}" if in_data else ""
    advice = run.advice_if_diverged or functools.partial(_advice, run.config)
    return DivergedError(f"{text}{where}. {kept}. {advice(bool(in_data))}")


def _advice(config: Config, in_data: bool) -> str:
    """Returns what to do in a config's run if something is not finite; `in_data`: whether the data has such values."""
    others = ', or set config.train.nonfinite to "skip", which leaves such steps out'
    others = others if config.train.nonfinite == "stop" else ""
    if in_data:
        return f"Remove or replace such values in the data{others}."
    return (
        "Lower config.learning_rate.peak, lengthen config.learning_rate.warmup_epochs or set config.train.clip_norm, "
        f"and start again in another workdir{others}."
    )


def _search_data(services: LoopServices, first_number: int, last_number: int) -> str:
    """Returns a sentence about the first value in the data of these steps that is not finite; "": there is none.

    Each worker searches its own examples.
    """
    cluster = services.run.cluster
    with cluster.monitor.pause_timers():
        found = services.run.feed.first_nonfinite(first_number, last_number)
    first = cluster.all_gather([last_number + 1 if found is None else found[0]])[:, 0]
    return cluster.all_gather_text("" if found is None else found[1])[int(first.argmin())]
