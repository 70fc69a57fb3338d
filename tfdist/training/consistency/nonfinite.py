"""Handles a non-finite loss, gradient or weight: stops, skips the step, or rolls back.

One function per value of `config.train.nonfinite`; each decides on values that are equal on all workers. Imported when
something is not finite, and for "rollback".

A rollback alone would read the same examples and end in the same NaN. So the run continues after the bad step, with the
weights of the newest scheduled checkpoint and without the examples in between (as for PaLM, arXiv 2204.02311, section
5.1). A checkpoint that was saved because of a stop request is not a scheduled one: otherwise an interrupted run would
roll back to another step than an uninterrupted one.
"""

import functools
import math

from tfdist.checkpoint import directory, restore
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.control import heartbeat_monitor
from tfdist.config import Config
from tfdist.training.consistency import example_search
from tfdist.training.execution import DivergedError, Execution
from tfdist.training.loop_tools import LoopTools
from tfdist.training.state import TrainingState
from tfdist.training.step import optimizer as optimizer_lib


def handle(tools: LoopTools, state: TrainingState, execution: Execution) -> bool:
    """Applies the policy of `config.train.nonfinite` to an execution; every worker calls it.

    Returns:
        Whether the run was rolled back. `state` is then after the bad step, where the data stream must be reopened.

    Raises:
        DivergedError: something is non-finite, and the policy ends the run.
    """
    return _POLICIES[tools.run.config.train.nonfinite](tools, state, execution)


def _stop(tools: LoopTools, state: TrainingState, execution: Execution) -> bool:
    loss, first_number = execution.totals["loss"], state.step - execution.steps + 1
    in_epoch = (state.step - 1) % tools.run.steps_per_epoch
    if not math.isfinite(loss) and not tools.run.callbacks.nonfinite_loss(in_epoch, loss):
        steps = f"steps {first_number} to {state.step}" if execution.steps > 1 else f"step {state.step}"
        text = f"The loss is {loss} in {steps}"
        raise make_diverged_error(tools, text, (first_number, state.step))
    if execution.skipped_steps:  # In float16, if no loss scale makes a gradient finite.
        bad_step = _bad_step(state, execution)
        raise make_diverged_error(tools, _bad_step_text(bad_step), (bad_step, bad_step))
    return False


def _skip(tools: LoopTools, state: TrainingState, execution: Execution) -> bool:
    skipped, limit = execution.skipped_steps, tools.run.config.train.nonfinite_limit
    if not skipped:
        return False
    state.skipped += skipped
    bad_step = _bad_step(state, execution)
    text = _bad_step_text(bad_step)
    if skipped > 1:
        text = f"The losses or gradients of {skipped} of the steps {bad_step} to {state.step} are not finite"
    if state.skipped > limit:
        too_many = f"{state.skipped} updates, more than config.train.nonfinite_limit={limit}"
        raise make_diverged_error(tools, f"{text}: {too_many}, would be skipped", (bad_step, bad_step))
    tools.report.event(f"WARNING: {text}. Skipped: {state.skipped} updates in all, of at most {limit}", state.step)
    return False


def _roll_back(tools: LoopTools, state: TrainingState, execution: Execution) -> bool:
    if execution.skipped_steps:
        bad_step = _bad_step(state, execution)
        text = _bad_step_text(bad_step)
    elif tools.run.save_is_due(state.step) and (bad := tools.not_finite()):
        # A gradient may be finite while its square in an optimizer's slot is not.
        bad_step, text = state.step, f"{bad} after step {state.step}"
    else:
        return False
    _restore_scheduled_checkpoint(tools, state, bad_step, text)
    return True


_POLICIES = {"stop": _stop, "skip": _skip, "rollback": _roll_back}


def _bad_step(state: TrainingState, execution: Execution) -> int:
    return state.step - execution.steps + 1 + execution.steps_before_skip


def _bad_step_text(step: int) -> str:
    return f"The loss or a gradient is not finite in step {step}"


def _restore_scheduled_checkpoint(tools: LoopTools, state: TrainingState, bad_step: int, text: str) -> None:
    """Restores the weights of the newest scheduled checkpoint, and skips the steps between it and the bad one."""
    run, limit = tools.run, tools.run.config.train.nonfinite_limit
    if state.rollbacks >= limit:
        text = f"{text}, after {limit} rollbacks (config.train.nonfinite_limit)"
        raise make_diverged_error(tools, text, (bad_step, bad_step))
    saved = None
    if tools.checkpointer is not None:
        tools.checkpointer.wait()
        saved = checkpoint_format.newest_valid(run.checkpoints, tools.report.warning, at_most=state.last_scheduled_step)
    saved = restore.broadcast_saved(run.cluster, saved)
    if saved is None:
        raise make_diverged_error(tools, f"{text}, and there is no checkpoint to roll back to", (bad_step, bad_step))
    rate = optimizer_lib.settable_learning_rate(run.context.optimizer)
    restore.restore(run.cluster, saved, run.variables)
    if rate is not None:  # As callbacks have set it: they do not go back.
        run.context.optimizer.learning_rate = rate
    optimizer_lib.step_count(run.context.optimizer).assign(bad_step)
    state.step, state.rollbacks = bad_step, state.rollbacks + 1
    state.interval.reset()
    # Not those of executions after the checkpoint, whose length depends on the time.
    in_epoch = saved.step > (bad_step - 1) // run.steps_per_epoch * run.steps_per_epoch
    state.epoch_totals = dict(saved.state.get("epoch_totals", {})) if in_epoch else {}
    tools.consistency.check(state)
    tools.report.event(
        f"WARNING: {text}. Rolled back to the weights of step {saved.step}; the run continues with step "
        f"{bad_step + 1}: rollback {state.rollbacks} of at most {limit}",
        bad_step,
    )


def make_diverged_error(tools: LoopTools, text: str, numbers: tuple[int, int] | None = None) -> DivergedError:
    """Makes the error that ends a diverged run. Every worker calls it.

    Args:
        numbers: the first and last step, counted from 1, whose data may be the reason; None: not known.
    """
    run = tools.run
    in_data = "" if numbers is None else _search_data(tools, *numbers) or example_search.label_out_of_range(run)
    if tools.checkpointer is not None:
        tools.checkpointer.wait_until_idle(heartbeat_monitor.writing_seconds())
    saved = None if run.workdir is None else directory.newest_step(run.checkpoints)
    kept = "There is no checkpoint yet" if saved is None else f"The checkpoint of step {saved} is kept"
    if run.workdir is None:
        kept = "Nothing is saved without a workdir"
    where = f": {in_data}" if in_data else ""
    advice = run.advice_if_diverged or functools.partial(_advice, run.config)
    return DivergedError(f"{text}{where}. {kept}. {advice(bool(in_data))}")


def _advice(config: Config, in_data: bool) -> str:
    """Returns what to do in a run of a config if something is not finite; `in_data`: it is in the data already."""
    others = ', or set config.train.nonfinite to "skip" or "rollback", which leave such steps out'
    others = others if config.train.nonfinite == "stop" else ""
    if in_data:
        return f"Remove or replace such values in the data{others}."
    return (
        "Lower config.learning_rate.peak, lengthen config.learning_rate.warmup_epochs or set config.train.clip_norm, "
        f"and start again in another workdir{others}."
    )


def _search_data(tools: LoopTools, first_number: int, last_number: int) -> str:
    """Returns a sentence about the first value in the data of these steps that is not finite; "": there is none.

    Each worker searches its own examples.
    """
    cluster = tools.run.cluster
    with cluster.monitor.pause_timers():
        found = tools.run.feed.first_nonfinite(first_number, last_number)
    first = cluster.all_gather([last_number + 1 if found is None else found[0]])[:, 0]
    return cluster.all_gather_text("" if found is None else found[1])[int(first.argmin())]
