"""Makes a run of a compiled model, after checking that it can be distributed."""

import contextlib
import functools
import numbers
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.config import paths
from tfdist.data import guard
from tfdist.keras_fit import callbacks as callbacks_lib
from tfdist.keras_fit import compiled_model
from tfdist.keras_fit.adapters import same_data
from tfdist.keras_fit.adapters.base import DataAdapter
from tfdist.keras_fit.compiled_objective import CompiledObjective
from tfdist.keras_fit.own_step import eager_steps, own_objective, own_setup, replica_step
from tfdist.keras_fit.run_parts import feed as feed_lib
from tfdist.keras_fit.whole_batch import metric_state, shard_layers
from tfdist.training import api as trainer


def make_run(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapter: DataAdapter,
    validation: DataAdapter | None,
    callbacks: Any,
    verbose: str | int,
    workdir: Path | None,
    stop: interruption.StopRequest,
    stack: contextlib.ExitStack,
    initial_epoch: int = 0,
) -> trainer.Run:
    """Makes a run of a compiled model that trains on `adapter`.

    Args:
        validation: evaluated after epochs; if it is `adapter`, the run does not train.
        callbacks: what Keras accepts as `callbacks`. They are made after the model is built.
        stack: restores what the run replaces in the model.

    Raises:
        ValueError: the model was not made in the cluster's scope, or the workers have different data.
    """
    saved = workdir is not None and validation is not adapter
    guarded = guard.Guarded(several_workers=cluster.num_workers > 1, saved=saved, is_script=True)
    stack.callback(guard.begin, guard.begin(guarded))
    adapters = [adapter] if validation is None or validation is adapter else [adapter, validation]
    for one in adapters:
        same_data.check_same_data(cluster, one)
    may_be_empty = any(one.smallest_batch < cluster.num_replicas for one in adapters)
    if own_setup.overrides(model):
        kinds = {} if validation is adapter else {"train": adapter}
        kinds |= {} if validation is None else {"test": validation}
        prepared = own_setup.prepare(cluster, model, config, kinds, may_be_empty=may_be_empty, stack=stack)
        context, train_step, more = prepared.context, own_objective.train_step, prepared.variables
    else:
        context = _prepare_compiled(cluster, model, config, adapter, validation, stack, may_be_empty)
        train_step, more = trainer.train_step, {}
    more = {**more, **shard_layers.check(cluster, trainer.layers_of_all_depths(model), context.statistics)}
    trainer.make_stateless(model, context.step_count, replica_step.replica_of_draws, config.seed)
    compares = workdir is not None
    feed = feed_lib.make_feed(cluster, config, adapter, validation, initial_epoch, callbacks, compares=compares)
    fit = {"epochs": round(config.train.epochs), "steps": adapter.steps, "saves_draws": not _made_by_code(adapters)}
    runner = callbacks_lib.make_callbacks(cluster, model, callbacks, verbose=verbose, workdir=workdir, **fit)
    feed = feed_lib.with_comparison(cluster, feed, runner, adapter, validation)
    console = "events" if verbose and (workdir is not None or cluster.num_workers > 1) else "nothing"
    return trainer.Run(
        config=config,
        workdir=workdir,
        cluster=cluster,
        stop=stop,
        context=context,
        feed=feed,
        callbacks=runner,
        is_script=True,
        checks_draws=not _made_by_code(adapters),
        log=trainer.Log(console=console, notes=_notes(adapters, workdir)),
        train_step=train_step,
        more_variables=more,
        execution_context=functools.partial(eager_steps.eager_if, model.run_eagerly),
        advice_if_diverged=functools.partial(_advice_if_diverged, workdir),
    )


def _made_by_code(adapters: list[DataAdapter]) -> bool:
    """Returns whether Python code makes some of the data: it may draw random numbers, and read ahead."""
    return any(adapter.gate is not None or adapter.epoch_hooks is not None for adapter in adapters)


def _notes(adapters: list[DataAdapter], workdir: Path | None) -> tuple[str, ...]:
    """Returns warnings for the log: an inexact resume, an order that may differ from that of Keras' own fit."""
    caveats = dict.fromkeys(one.resume_caveat for one in adapters if one.resume_caveat is not None)
    notes = [f"An exact resume needs care: {one}." for one in caveats if workdir is not None]
    return (*notes, *([adapters[0].order_unknown] if adapters[0].order_unknown else []))


def _advice_if_diverged(workdir: Path | None, in_data: bool) -> str:
    """Returns what to do if a loss or weight is not finite; `in_data`: it is in the data already."""
    if in_data:
        return "Remove or replace such values in the data."
    again = "" if workdir is None else ", and start again in another workdir"
    return f"Lower the learning rate, or clip the gradients with the optimizer's global_clipnorm{again}."


def _prepare_compiled(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapter: DataAdapter,
    validation: DataAdapter | None,
    stack: contextlib.ExitStack,
    may_be_empty: bool,
) -> trainer.StepContext:
    trains, optimizer, built = validation is not adapter, model.optimizer, model.optimizer.built
    try:
        # Keras also builds an optimizer that is not built: an evaluation needs no slots.
        optimizer.built = built or not trains
        with cluster.scope():
            _build(model, adapter.element_spec)
    finally:
        optimizer.built = optimizer.built if trains else built
    loss_scale = None
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        if trains:  # tfdist scales the loss: Keras checks replica 0's gradients only.
            loss_scale = _loss_scale(cluster, model, optimizer, stack)
        optimizer = optimizer.inner_optimizer
    stack.enter_context(trainer.take_branches_once(optimizer))
    stack.enter_context(metric_state.compute_on_whole_batch(cluster, metric_state.metrics_of(model)))
    objective = CompiledObjective(
        model=model,
        batch_sizes={True: adapter.batch_size, False: (validation or adapter).batch_size},
        optimizer=optimizer,
        metric_state=metric_state.make_metric_state(cluster, lambda: model.metrics_variables),
        may_be_empty=may_be_empty,
    )
    context = trainer.build_context(cluster, config, objective, optimizer, slots=trains, loss_scale=loss_scale)
    if trains:
        trainer.start_averages(model, optimizer)
    return context


def _loss_scale(
    cluster: Cluster, model: keras.Model, optimizer: keras.optimizers.LossScaleOptimizer, stack: contextlib.ExitStack
) -> trainer.LossScale:
    """Returns the scale of Keras' optimizer; at the end of the run, this has its count of steps too."""
    with cluster.scope():
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        scale = trainer.LossScale.of_optimizer(optimizer)
    stack.callback(lambda: optimizer.step_counter.assign(tf.cast(scale.good_steps, optimizer.step_counter.dtype)))
    return scale


def cache_on_model(cluster: Cluster, model: keras.Model, purpose: str, function: Callable, *depends: Any) -> Callable:
    """Returns `function`; on later calls that of the first one, which is traced. As in Keras, until the next `compile`.

    Args:
        purpose: such as "evaluation".
        depends: other values that it was made for.
    """
    compiled = (compiled_model.losses(model), compiled_model.metrics(model))
    made_for = (cluster, getattr(model, "optimizer", None), *compiled, *depends)
    name = f"_tfdist_{purpose}"
    before, kept = vars(model).get(name, ((), None))
    if kept is None or any(old is not new and old != new for old, new in zip(before, made_for, strict=True)):
        kept = function
        vars(model)[name] = (made_for, kept)  # Keras does not track what is set in this way.
    return kept


def _build(model: keras.Model, element_spec: Any) -> None:
    """Builds the model, its losses and its metrics for data of `element_spec`."""
    targets = keras.utils.unpack_x_y_sample_weight(element_spec)[1]
    of_keras = not compiled_model.overrides(model, "compute_loss")
    if targets is None and model.loss is not None and of_keras:
        raise ValueError(
            "The loss of compile(loss=...) needs targets, and the data has none: pass y, or data of (x, y)."
        )
    parts = (*trainer.layers_of_all_depths(model), compiled_model.losses(model), compiled_model.metrics(model))
    if all(part is None or part.built for part in parts) and not model.run_eagerly:
        return

    def forward(data: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        predictions = compiled_model.call(model, x, training=False)
        if compiled_model.losses(model) is not None or not of_keras:
            model.compute_loss(x=x, y=y, y_pred=predictions, sample_weight=sample_weight)
        model.compute_metrics(x, y, predictions, sample_weight)

    eager_steps.call_without_effect(model, forward, element_spec)


def check_epochs(epochs: int, initial_epoch: int, validation_freq: int | Collection[int]) -> None:
    """Raises ValueError if one of these arguments of `tfdist.fit` is no whole number, or too small."""
    listed = validation_freq if isinstance(validation_freq, Collection) else [validation_freq]
    whole = all(isinstance(one, numbers.Integral) for one in (epochs, initial_epoch, *listed))
    if not whole or min([epochs, *listed]) < 1 or initial_epoch < 0:
        raise ValueError(
            "epochs and validation_freq (or what it lists) must be whole numbers from 1 on, initial_epoch from 0 on. "
            f"Received: epochs={epochs!r}, validation_freq={validation_freq!r}, initial_epoch={initial_epoch!r}"
        )


def to_path(workdir: os.PathLike | str | None) -> Path | None:
    """Returns the argument `workdir` of `tfdist.fit` as a path; raises ValueError if it is none."""
    if workdir is None:
        return None
    if not isinstance(workdir, str | os.PathLike):
        raise ValueError(f'workdir must be a path, such as workdir="runs/mine". Received: {workdir!r}')
    return paths.local(workdir, "workdir", variables=False)


def check_arguments(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Checks the types of the first two arguments of `tfdist.PURPOSE(cluster, model, x, ...)`, and where it is called.

    Raises:
        ValueError: names the argument, what it must be, and what was received.
        RuntimeError: as `cluster.check`.
    """
    form = f"tfdist.{purpose}(cluster, model, x, ...)"
    if not isinstance(cluster, Cluster):
        raise ValueError(
            f"{form}: `cluster` must be what tfdist.connect() returned. Received: {type(cluster).__name__}"
        )
    if not isinstance(model, keras.Model):
        raise ValueError(f"{form}: `model` must be a keras.Model. Received: {type(model).__name__}")
    cluster_lib.check(f"tfdist.{purpose}")


def check_model(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Checks that `model` was compiled in the cluster's scope, and needs nothing that is not supported."""
    name = type(model).__name__
    if not model.compiled or model.optimizer is None:
        raise ValueError(f"Call model.compile(optimizer=..., loss=...) in cluster.scope() before tfdist.{purpose}.")
    check_functions(model, {"fit": "train", "evaluate": "test"}[purpose])
    # Metrics in the place of loss_weights, the third argument of compile.
    given = compiled_model.compile_loss_weights(model)
    if any(isinstance(one, str | keras.metrics.Metric) or callable(one) for one in keras.tree.flatten(given)):
        raise ValueError(f"The third argument of compile is loss_weights: write metrics={given!r}. Received: {given!r}")
    if any(not cluster.created_here(variable.value) for variable in (*model.variables, *model.optimizer.variables)):
        raise ValueError(
            f"The {name} or its optimizer was made outside of cluster.scope(): build and compile the model "
            "within `with cluster.scope():`."
        )
    if own_setup.overrides(model) and model.jit_compile:
        raise ValueError(
            f"compile(jit_compile=True) is not supported with the {own_setup.overrides(model)[0]} of {name}, in which "
            "replicas communicate: remove it, and decorate functions without an optimizer with "
            "tf.function(jit_compile=True)."
        )
    synchronized = trainer.synchronized_layers(model) if model.jit_compile and cluster.num_replicas > 1 else ()
    if synchronized:
        raise ValueError(
            "compile(jit_compile=True) compiles no communication between replicas, but the layer "
            f"{synchronized[0].name!r} normalises over all of them: remove jit_compile=True, or set synchronized=False."
        )
    # A step of the model's own reduces the loss itself.
    own = compiled_model.overrides(model, {"fit": "train_step", "evaluate": "test_step"}[purpose])
    losses = [] if own else compiled_model.compile_losses(model)
    if any(isinstance(loss, keras.Loss) and loss.reduction in (None, "none") for loss in losses):
        raise ValueError(
            'A loss with reduction=None is not a scalar: use reduction="sum_over_batch_size", the default.'
        )


def check_functions(model: keras.Model, kind: str) -> None:
    """Raises ValueError if the model has its own `make_KIND_function`; `kind`: "train", "test" or "predict"."""
    if compiled_model.overrides(model, f"make_{kind}_function"):
        raise ValueError(
            f"{type(model).__name__} has its own make_{kind}_function, which is not called: tfdist makes the function "
            f"that runs {kind}_step on all replicas. Put what it does into {kind}_step, and remove it."
        )
