"""What follows when the loss, a gradient or a weight is not finite: the run stops, leaves the update out, or goes back.

Going back alone would lead to the same NaN, for the same examples would be read. So the run goes on behind the bad
step: with the weights of the newest regular checkpoint, and without the examples between (as PaLM was trained, arXiv
2204.02311, section 5.1). Regular are those that the config asks for; one that was written because the run was asked to
stop is none, or an interrupted run would not go back to where an uninterrupted one does. Everything here is decided on
values that are the same on all workers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import directory
from tfdist.checkpoint import format as checkpoint_format
from tfdist.training import state
from tfdist.training.state import LoopTools, TrainingState


def finite_check(variables: Mapping[str, Any]) -> Callable[[], bool]:
    """Compiles a function that tells whether no floating-point variable holds an infinity or NaN."""
    floats = [checkpoint_format._value(v) for v in variables.values() if checkpoint_format._value(v).dtype.is_floating]

    @tf.function(autograph=False)
    def check() -> tf.Tensor:
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in floats])

    return lambda: bool(check())


class DivergedError(ArithmeticError):
    """The loss or the weights are no longer finite."""


def handle_nonfinite(loop: LoopTools, progress: TrainingState, first_step: int, totals: dict[str, float]) -> bool:
    """Looks at a call that began with `first_step` and has come to `totals`; every worker calls it.

    Returns:
        Whether the run has gone back. `progress` then stands after the bad step, where the stream must begin anew.

    Raises:
        DivergedError: something is not finite, and the config says that the run stops there.
    """
    options, last_step = loop.run.config.train, progress.step
    skipped, bad_step = round(totals["skipped"]), first_step + round(totals["clean"])
    what = f"The loss or a gradient is not finite in step {bad_step}"
    if options.nonfinite == "stop":
        in_epoch = (last_step - 1) % loop.run.steps_per_epoch
        if not math.isfinite(totals["loss"]) and not loop.run.callbacks.nonfinite_loss(in_epoch, totals["loss"]):
            raise diverged(loop, f"The loss is {totals['loss']} in steps {first_step} to {last_step}")
        if skipped:  # In float16, where no scale of the loss makes a gradient finite.
            raise diverged(loop, what)
        return False
    if options.nonfinite == "rollback":
        if not skipped and state.save_is_due(loop.run, last_step) and not loop.is_finite():
            # A gradient may be finite, and its square in an optimizer's slot not.
            skipped, bad_step, what = 1, last_step, f"The weights are no longer finite after step {last_step}"
        if skipped:
            _roll_back(loop, progress, bad_step, what)
        return bool(skipped)
    if skipped:
        progress.skipped += skipped
        if skipped > 1:
            what = f"The losses or gradients of {skipped} of the steps {bad_step} to {last_step} are not finite"
        if progress.skipped > options.nonfinite_limit:
            text = f"{progress.skipped} updates, more than config.train.nonfinite_limit={options.nonfinite_limit}"
            raise diverged(loop, f"{what}: {text}, would be left out")
        text = f"Left out: {progress.skipped} updates in all, of at most {options.nonfinite_limit}"
        loop.report.event(f"WARNING: {what}. {text}", last_step)
    return False


def _roll_back(loop: LoopTools, progress: TrainingState, bad_step: int, what: str) -> None:
    """Takes up the weights of the newest regular checkpoint, and passes over the steps between it and the bad one."""
    run, limit = loop.run, loop.run.config.train.nonfinite_limit
    if progress.rollbacks >= limit:
        raise diverged(loop, f"{what}, after the run went back {limit} times (config.train.nonfinite_limit)")
    found = -1
    if loop.saver is not None:
        loop.saver.wait()
        saved = checkpoint_format.newest_valid(run.checkpoints, loop.report.warning, at_most=progress.regular)
        found = -1 if saved is None else saved.step
    found = run.cluster.broadcast(found)
    if found < 0:
        raise diverged(loop, f"{what}, and there is no checkpoint to go back to")
    checkpoint_format.restore(checkpoint_format.verify(directory.step_path(run.checkpoints, found)), run.variables)
    run.trainer.optimizer.iterations.assign(bad_step)
    progress.step, progress.rollbacks = bad_step, progress.rollbacks + 1
    progress.totals, progress.seconds, progress.steps = {}, 0.0, 0
    loop.agreement.check(bad_step)
    loop.report.event(
        f"WARNING: {what}. The run goes back to the weights of step {found} and on with step {bad_step + 1}: "
        f"{progress.rollbacks} of at most {limit} times",
        bad_step,
    )


def diverged(loop: LoopTools, what: str) -> DivergedError:
    """Makes the error that ends a diverged run."""
    if loop.saver is not None:
        loop.saver.wait()
    saved = None if loop.run.workdir is None else directory.newest_step(loop.run.checkpoints)
    kept = "There is no checkpoint yet" if saved is None else f"The checkpoint of step {saved} is kept"
    other = ""
    if loop.run.config.train.nonfinite == "stop":
        other = ', or with config.train.nonfinite="skip" or "rollback", which leave such steps out'
    return DivergedError(
        f"{what}. {kept}. Lower config.learning_rate.peak, lengthen config.learning_rate.warmup_epochs or set "
        f"config.train.clip_norm, and start again in another workdir{other}."
    )
