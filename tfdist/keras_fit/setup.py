"""Makes a run of a compiled model, after checking that it can be distributed, and compares the workers' data."""

import zlib
from pathlib import Path

import keras
import numpy as np

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import interruption
from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit.adapters.base import BatchAdapter, DataAdapter
from tfdist.keras_fit.compiled_objective import CompiledObjective
from tfdist.training import run as run_lib
from tfdist.training.callbacks.callback_runner import CallbackRunner
from tfdist.training.run import Run
from tfdist.training.step import context as context_lib
from tfdist.training.step import seed_generators


def make_run(
    cluster: Cluster,
    model: keras.Model,
    config: config_lib.Config,
    adapter: DataAdapter,
    validation: DataAdapter | None,
    workdir: Path | None,
    stop: interruption.StopRequest,
) -> Run:
    """Makes a run of a compiled model, without callbacks, that trains on `adapter`.

    Raises:
        ValueError: the model was not made in the cluster's scope, or the workers have different data.
    """
    adapters = [adapter] if validation is None or validation is adapter else [adapter, validation]
    for one in adapters:
        check_same(cluster, one)
    with cluster.scope():
        model._symbolic_build(data_batch=adapter.element_spec)
    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer  # tfdist scales the loss: Keras checks replica 0's gradients only.
    objective = CompiledObjective(
        model=model,
        optimizer=optimizer,
        may_be_empty=any(one.smallest_batch < cluster.num_replicas for one in adapters),
    )
    context = context_lib.build_context(cluster, config, objective, optimizer)
    seed_generators.make_stateless(model, optimizer.iterations, cluster_lib.replica_id)
    shard = run_lib.replica_shard(cluster)
    return Run(
        config=config,
        workdir=workdir,
        cluster=cluster,
        stop=stop,
        context=context,
        by_epochs=True,
        training_data=lambda first_step, last_step: adapter.dataset(shard, first_step, last_step),
        evaluation_data=None
        if validation is None
        else lambda: (validation.dataset(shard, 0, validation.steps), validation.steps),
        evaluation_examples=None,
        steps_per_epoch=adapter.steps,
        total_steps=round(config.train.epochs * adapter.steps),
        batch_size=adapter.batch_size,
        callbacks=CallbackRunner(cluster, model),
        notes=() if adapter.resume_caveat is None else (f"An exact resume needs care: {adapter.resume_caveat}.",),
    )


def check_same(cluster: Cluster, adapter: DataAdapter) -> None:
    """Compares the size of the data, and the first batch if every worker makes whole batches, with the chief's.

    Raises:
        ValueError: this worker has different data.
    """
    if cluster.num_workers == 1:
        return
    checksum = zlib.crc32(repr((adapter.steps, adapter.batch_size)).encode())
    if isinstance(adapter, BatchAdapter) and adapter.sample is not None:
        for part in adapter.sample():
            checksum = zlib.crc32(np.ascontiguousarray(part), checksum)
    if cluster.broadcast(checksum) != checksum:
        raise ValueError(
            f"Worker {cluster.rank} has other data than worker 0: {adapter.steps} steps of {adapter.batch_size} "
            "examples here, or another first batch. All workers must pass the same data in the same order; each takes "
            "its shard. Seed the shuffling: call keras.utils.set_random_seed before the dataset is made."
        )


def check_model(cluster: Cluster, model: keras.Model, purpose: str) -> None:
    """Checks that `model` was compiled in the cluster's scope, and needs nothing that is not supported.

    Args:
        purpose: "fit" or "evaluate".

    Raises:
        ValueError: names what is missing or not supported, and what to do instead.
    """
    name = type(model).__name__
    if not model.compiled or model.optimizer is None:
        raise ValueError(f"Call model.compile(optimizer=..., loss=...) in cluster.scope() before tfdist.{purpose}.")
    if any(not cluster.created_here(variable.value) for variable in (*model.variables, *model.optimizer.variables)):
        raise ValueError(
            f"The {name} or its optimizer was made outside of cluster.scope(): build and compile the model "
            "within `with cluster.scope():`."
        )
    own = "train_step" if purpose == "fit" else "test_step"
    for step in {own, "test_step"}:
        if getattr(type(model), step) is not getattr(keras.Model, step):
            raise ValueError(
                f"{name} overrides {step}, and tfdist cannot know what to sum over replicas there: override "
                "compute_loss(x, y, y_pred, sample_weight, training) and compute_metrics instead."
            )
    losses = [] if model._compile_loss is None else keras.tree.flatten(model._compile_loss._user_loss)
    if any(isinstance(loss, keras.Loss) and loss.reduction in (None, "none") for loss in losses):
        raise ValueError(
            'A loss with reduction=None is not a scalar: use reduction="sum_over_batch_size", the default.'
        )
    if hasattr(model, "preprocess_samples") and getattr(model, "preprocessor", None) is not None:
        raise ValueError(
            f"{name} has a preprocessor, which keras-hub's own fit calls: map it over the data, and set "
            "model.preprocessor = None."
        )
    if model.run_eagerly:
        raise ValueError("compile(run_eagerly=True) is not supported: remove it.")
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
        if getattr(optimizer, name, None):
            raise ValueError(
                f"The optimizer's {name}={getattr(optimizer, name)} does not work in a compiled step over replicas: "
                "remove it."
            )
