"""Builds the callbacks in `config.callbacks`, and checks them before training starts."""

from typing import Any

import keras

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.config import schema, specs
from tfdist.training.callbacks.callback_runner import CallbackRunner


def make_callbacks(
    config: config_lib.Config,
    cluster: Cluster,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    names: tuple[str, ...],
    *,
    epochs: int,
    steps: int,
) -> CallbackRunner:
    """Builds the callbacks in `config.callbacks`.

    Args:
        config: the config of the run.
        cluster: the workers.
        model: the model that the callbacks get.
        optimizer: the optimizer whose learning rate they may set.
        names: names of the objective's values.
        epochs: length of the training, in epochs.
        steps: steps per epoch.

    Raises:
        ValueError: a spec cannot be built, or the callback monitors or sets something that the run does not have.
    """
    if not config.callbacks:
        return CallbackRunner(cluster, model)
    evaluated = [f"val_{name}" for name in names] if config.data.evaluation_split is not None else []
    callbacks = []
    for index, spec in enumerate(config.callbacks):
        callback = specs.build(spec, field=f"config.callbacks[{index}]")
        _check(callback, f"config.callbacks[{index}]", [*names, *evaluated, "learning_rate"], optimizer)
        callbacks.append(callback)
    model.optimizer = optimizer  # Keras' callbacks read it there.
    return CallbackRunner(cluster, model, optimizer, callbacks, None, {"verbose": 0, "epochs": epochs, "steps": steps})


def _check(callback: Any, field: str, names: list[str], optimizer: keras.optimizers.Optimizer) -> None:
    if not isinstance(callback, keras.callbacks.Callback):
        raise ValueError(f"{field}.target must return a keras.callbacks.Callback. Received: {type(callback).__name__}")
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise ValueError(f"{field}: BackupAndRestore is not needed: run the same command to resume. Remove it.")
    rate = getattr(optimizer, "_learning_rate", None)
    setters = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
    if isinstance(callback, setters) and not isinstance(rate, keras.Variable):
        raise ValueError(
            f"{field}: {type(callback).__name__} cannot set the learning rate of a schedule: set "
            f'config.learning_rate.schedule to {{"target": "{schema.SETTABLE_SCHEDULE}"}}.'
        )
    monitor = getattr(callback, "monitor", None)
    if not isinstance(monitor, str):
        return
    if monitor not in names and getattr(callback, "save_best_only", True):
        raise ValueError(f"{field}.monitor={monitor!r} is not a metric of this run. Choose one of: {', '.join(names)}.")
    if callback.mode == "auto" and monitor.removeprefix("val_") != "loss":
        raise ValueError(f'{field}: set mode="max" or mode="min" for monitor={monitor!r}.')
