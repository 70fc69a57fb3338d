"""Makes what a step uses: the objective of a config, and the `StepContext`."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import onednn
from tfdist.config import patching
from tfdist.report import reporter
from tfdist.training.step import objective as objective_lib
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step import per_example, timing
from tfdist.training.step.context import StepContext
from tfdist.training.step.layers import convolutions, fused, model_layers, normalization, remat_scopes
from tfdist.training.step.updates import fused_updates, stages, work_sharing
from tfdist.training.step.updates.all_reduce import AllReduce, with_pack_size
from tfdist.training.step.updates.loss_scale import LossScale

# Attributes that `prepare_optimizer` sets on an optimizer object.
OPTIMIZER_ATTRIBUTES = (
    "_all_reduce_sum_gradients",
    "_apply_weight_decay",
    "assign_add",
    "assign_sub",
    "update_step",
    "work_sharing",
)


def build_objective(
    cluster: Cluster,
    config: config_lib.Config,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    function: per_example.ObjectiveFunction,
    element_spec: dict[str, tf.TensorSpec],
    *,
    compiles: bool = True,
) -> per_example.PerExampleObjective:
    """Makes the objective of a config, and checks that its function returns one value per example.

    Args:
        element_spec: shapes and dtypes of a batch. The function is called with two blank examples, which also builds a
            subclassed model.
        compiles: whether XLA can compile the forward and backward pass.

    Raises:
        ValueError: the function returns something other than one value per example, no "loss" or a reserved name; or
            `checkpoint.best_metric` is not among its names.
    """
    with cluster.scope():
        blank = {name: tf.zeros([2, *spec.shape[1:]], spec.dtype) for name, spec in element_spec.items()}
        names = per_example.check_values(function(model, blank, training=False), num_examples=2)
        if model.losses:
            names = (*names, "regularization")
    _check_names(config, names)
    return per_example.PerExampleObjective(
        model=model,
        optimizer=optimizer,
        function=function,
        names=names,
        global_batch=config.data.batch_size,
        micro_batches=config.train.micro_batches,
        accumulate=per_example.in_loop,
        xla=(compiles or bool(config.train.xla)) and compiles_with_xla(config.train, cluster.device_type, model),
    )


def _check_names(config: config_lib.Config, names: tuple[str, ...]) -> None:
    """Raises ValueError if the objective uses a reserved name, or `checkpoint.best_metric` is not among its names."""
    reserved = [name for name in names if name in reporter.RESERVED]
    if reserved:
        raise ValueError(
            f"config.objective returns {reserved[0]!r}, a name that metrics.jsonl uses itself: choose another."
        )
    evaluated = [name for name in names if name != "regularization"]
    if config.checkpoint.best_metric not in (None, *evaluated):
        raise ValueError(
            f"config.checkpoint.best_metric={config.checkpoint.best_metric!r} is not among the values that the "
            f"objective returns: {', '.join(evaluated)}"
        )


def compiles_with_xla(train: config_lib.Train, device_type: str, model: keras.Model) -> bool:
    """Returns whether XLA compiles the forward and backward pass.

    The default is Keras': on GPUs, if all layers support it and none recomputes, but not with TF_DETERMINISTIC_OPS.

    Args:
        device_type: "GPU" or "CPU".
    """
    if train.xla is not None:
        return train.xla
    if device_type != "GPU" or os.environ.get("TF_DETERMINISTIC_OPS") in ("1", "true"):
        return False
    return all(one.supports_jit and remat_scopes.remat_scope(one) is None for one in model_layers.all_layers(model))


def build_context(
    cluster: Cluster,
    config: config_lib.Config,
    objective: objective_lib.Objective,
    optimizer: keras.optimizers.Optimizer,
    *,
    slots: bool = True,
    moving: Sequence[keras.Variable] | None = None,
    step_count: keras.Variable | None = None,
    loss_scale: LossScale | None = None,
) -> StepContext:
    """Makes the variables of a step, and prepares the optimizer for gradients that are already summed.

    Args:
        slots: whether to make the optimizer's slots; an evaluation needs none.
        moving: the moving statistics; None: `model_layers.statistics(model)`.
        step_count: int64 []: steps so far; None: the optimizer's.
        loss_scale: None: a new one, for `config.train.precision="float16"`.
    """
    model = objective.model
    normalization.check_penalties(model, cluster.num_replicas)
    prepare_optimizer(optimizer, cluster)
    normalization.make_exact(model)
    speed_up_layers(model, cluster.device_type)
    found = model_layers.statistics(model) if moving is None else moving
    with cluster.scope():
        if slots:
            optimizer.build(model.trainable_variables)
        totals = timing.make_counter([len(objective.names) + len(objective_lib.COUNTS)], "totals")
        reduction = AllReduce(
            num_replicas=cluster.num_replicas,
            options=with_pack_size(config.communication, cluster.implementation),
            seconds=timing.make_counter([], "communication_seconds"),
            clock=timing.choose_clock(config.report.step_times, cluster.device_type),
        )
        if loss_scale is None and config.train.precision == "float16":
            loss_scale = LossScale.create()
    return StepContext(
        cluster=cluster,
        config=config,
        objective=objective,
        optimizer=optimizer,
        statistics=tuple(found),
        loss_scale=loss_scale,
        reduction=reduction,
        apply=stages.make_apply(config.train, cluster, model, optimizer),
        step_count=optimizer_lib.step_count(optimizer) if step_count is None else step_count,
        totals=totals,
    )


def speed_up_layers(model: keras.Model, device_type: str) -> None:
    """If `device_type` is "CPU", replaces methods of layers by faster ones."""
    if device_type == "CPU":
        convolutions.use_products(model, tiles=onednn.TILES in onednn.read_processor().flags)
        fused.fuse(model)


def prepare_optimizer(optimizer: keras.optimizers.Optimizer, cluster: Cluster) -> None:
    """Makes an optimizer accept summed gradients, use fused kernels, and divide work among replicas."""
    optimizer_lib.accept_summed_gradients(optimizer, begin_apply=fused_updates.fuse(optimizer))
    work_sharing.share_updates(optimizer, cluster)


def restore_methods(optimizer: keras.optimizers.Optimizer) -> AbstractContextManager[None]:
    """Restores, at the end of a block, the attributes that a run sets on a script's optimizer."""
    return patching.restore_after([optimizer], OPTIMIZER_ATTRIBUTES)
