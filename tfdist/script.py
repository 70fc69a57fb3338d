"""For scripts that build and compile a Keras model themselves: `connect` and `fit`."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from tfdist import config as config_lib
from tfdist import experiment, hooks, interruption, randomness, step, train
from tfdist.cluster import strategy
from tfdist.cluster.strategy import Cluster, connect
from tfdist.compiled import Compiled
from tfdist.data import feeds, given

__all__ = ["connect", "fit"]


def fit(
    cluster: Cluster,
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int = 1,
    workdir: os.PathLike | str | None = None,
    seed: int = 0,
) -> Any:
    """Trains a compiled model as `model.fit` does on one device, on all workers and devices of `cluster`.

    Args:
        cluster: what `connect` returned; `model` was made and compiled in its scope.
        model: its weights are trained in place.
        x: arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a source (`len` and `read(ids)`) or a generator.
        y: the targets, where `x` is arrays.
        batch_size: examples in one step over all replicas, 32 where `x` is arrays and nothing else is said.
        workdir: where the run lives, the same for all workers: the same script in the same workdir resumes. None:
            nothing is written, and nothing resumed.
        seed: decides the order of the examples.

    The other arguments are those of `model.fit`.

    Returns:
        A `keras.callbacks.History`.

    Raises:
        ValueError: says which argument cannot be used, and what to do.
        SystemExit: with code 75, when the run was asked to stop and is saved in the workdir: start it again to go on.
    """
    optimizer = _check_model(cluster, model)
    feed = given.open_feed(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        steps=steps_per_epoch,
        shuffle=shuffle,
        class_weight=class_weight,
        seed=seed,
    )
    validation = None
    if validation_data is not None:
        validation = _validation_feed(validation_data, validation_batch_size or batch_size, validation_steps)
    config = config_lib.Config(
        model={"name": model.name},
        data=config_lib.Data(source={"kind": type(x).__name__}, batch_size=feed.batch_size, shuffle=shuffle),
        train=config_lib.Train(epochs=epochs, precision=_precision(model)),
        evaluation=config_lib.Evaluation(every=config_lib.Every(epochs=validation_freq)),
        report=config_lib.Report(every=config_lib.Every(epochs=1)),
        seed=seed,
    )
    run = _make_run(cluster, model, optimizer, config, feed, validation, workdir=workdir)
    run = dataclasses.replace(run, hooks=hooks.Hooks())
    if train.train(run) == interruption.EXIT_STOPPED:
        strategy.leave(cluster)
        raise SystemExit(interruption.EXIT_STOPPED)
    optimizer.finalize_variable_values(model.trainable_variables)
    return run.hooks.history


def _check_model(cluster: Cluster, model: keras.Model) -> keras.optimizers.Optimizer:
    if not model.compiled or model.optimizer is None:
        raise ValueError("Call model.compile(optimizer=..., loss=...) in cluster.scope() before tfdist.fit.")
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"{type(model).__name__} has a train_step of its own, which applies its gradients itself: tfdist cannot "
            "sum them over replicas first. Write compute_loss(x, y, y_pred, sample_weight, training) instead."
        )
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        if getattr(optimizer, name, None):
            raise ValueError(
                f"optimizer.{name}={getattr(optimizer, name)} does not work in a compiled step on several replicas: "
                "remove it."
            )
    return optimizer


def _precision(model: keras.Model) -> str:
    return "float16" if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) else "float32"


def _validation_feed(data: Any, batch_size: int | None, steps: int | None) -> feeds.Feed:
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    return given.open_feed(x, y, sample_weight, batch_size=batch_size, steps=steps)


def _make_run(
    cluster: Cluster,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    config: config_lib.Config,
    feed: feeds.Feed,
    validation: feeds.Feed | None,
    *,
    workdir: os.PathLike | str | None,
) -> experiment.Run:
    with cluster.scope():
        model._symbolic_build(data_batch=feed.element_spec)
    used = [feed] if validation is None else [feed, validation]
    may_be_empty = any(one.smallest_batch < cluster.num_replicas for one in used)
    compiled = Compiled(model=model, may_be_empty=may_be_empty)
    trainer = step.compiled_trainer(cluster, config, compiled, optimizer)
    randomness.address(model, optimizer.iterations, strategy.replica_id)
    share = experiment.share(cluster)
    return experiment.make_run(
        config,
        None if workdir is None else Path(workdir).expanduser(),
        cluster,
        interruption.StopRequest() if workdir is None else interruption.listen(),
        trainer,
        training_data=lambda first_step, last_step: feed.dataset(share, first_step, last_step),
        evaluation_data=None
        if validation is None
        else lambda: (validation.dataset(share, 0, validation.steps), validation.steps),
        evaluation_examples=None,
        steps_per_epoch=feed.steps,
        total_steps=round(config.train.epochs * feed.steps),
        batch_size=feed.batch_size,
    )
