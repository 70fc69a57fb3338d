"""`config.callbacks`: Keras callbacks, named by specs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tfdist.config import schema, specs

if TYPE_CHECKING:
    from tfdist.data.pipelines import Inputs
    from tfdist.training.run import Run


def find_errors(config: schema.Config) -> Iterator[str]:
    """Yields an error for each element that is not a spec."""
    for spec in config.callbacks:
        if not isinstance(spec, dict):
            yield f'callbacks must be a list of dicts with a "target". Received: {spec!r}'


def change_inputs(config: schema.Config, inputs: Inputs, num_replicas: int) -> Inputs:
    """Checks each spec's target and arguments, and returns `inputs` unchanged; ValueError names the element."""
    for index, spec in enumerate(config.callbacks):
        specs.partial(spec, field=f"config.callbacks[{index}]")
    return inputs


def apply(run: Run) -> Run:
    """Returns `run` with its callbacks; ValueError if one cannot be built, or needs what the run does not have."""
    if not run.config.callbacks:
        return run
    from tfdist.training.features import callback_runner

    model, sizes = run.context.model, run.feed.sizes
    callbacks = []
    for index, spec in enumerate(run.config.callbacks):
        field = f"config.callbacks[{index}]"
        callbacks.append(specs.build(spec, field=field))
        _check_callback(run, callbacks[-1], field)
    model.optimizer = run.context.optimizer  # Keras' callbacks read it there.
    epochs = math.ceil(sizes.total_steps / sizes.steps_per_epoch)
    params = {"verbose": 0, "epochs": epochs, "steps": sizes.steps_per_epoch}
    made = callback_runner.CallbackRunner(run.cluster, model, callbacks, params=params)
    return dataclasses.replace(run, hooks=made)


def _check_callback(run: Run, callback: Any, field: str) -> None:
    import keras

    from tfdist.training.step import optimizer as optimizer_lib

    config, optimizer = run.config, run.context.optimizer
    if not isinstance(callback, keras.callbacks.Callback):
        raise ValueError(f"{field}.target must return a keras.callbacks.Callback. Received: {type(callback).__name__}")
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise ValueError(f"{field}: BackupAndRestore is not needed: run the same command to resume. Remove it.")
    if getattr(callback, "restore_best_weights", False) and optimizer_lib.evaluates_averages(config, optimizer):
        raise ValueError(
            f"{field}.restore_best_weights=True restores weights, but with config.optimizer.use_ema=True their "
            "averages are evaluated and exported: remove it, and set config.checkpoint.best_metric, which keeps "
            "the checkpoint with the best averages."
        )
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    if isinstance(callback, setters) and optimizer_lib.settable_learning_rate(optimizer) is None:
        raise ValueError(
            f"{field}: {type(callback).__name__} cannot set the learning rate of a schedule: set "
            f'config.learning_rate.schedule to {{"target": "{schema.SETTABLE_SCHEDULE}"}}.'
        )
    monitor = getattr(callback, "monitor", None)
    if not isinstance(monitor, str):
        return
    evaluated = [f"val_{name}" for name in run.context.names] if config.data.evaluation_split is not None else []
    names = [*run.context.names, *evaluated, "learning_rate"]
    if monitor not in names and getattr(callback, "save_best_only", True):
        raise ValueError(f"{field}.monitor={monitor!r} is not a metric of this run. Choose one of: {', '.join(names)}.")
    if callback.mode == "auto" and monitor.removeprefix("val_") != "loss":
        raise ValueError(f'{field}: set mode="max" or mode="min" for monitor={monitor!r}.')
