"""Makes a run of a config: checks it against data and devices, meets the other workers, builds the model."""

import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from tfdist import config as config_lib
from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import interruption, slurm_requeue, strategy
from tfdist.config import diff, specs, validate
from tfdist.data import autograph, cache, stream
from tfdist.report import reporter, run_info
from tfdist.training import replica_consistency
from tfdist.training import run as run_lib
from tfdist.training.callbacks import from_config
from tfdist.training.run import Run
from tfdist.training.step import context, seed_generators
from tfdist.training.step import optimizer as optimizer_lib

_DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build_run(config: config_lib.Config, workdir: Path) -> Run:
    """Checks everything that can be checked, cheapest first, then meets the other workers and builds the model.

    Raises:
        StopError: a worker was asked to stop before all had met.
        ValueError: the config contradicts itself, the data or the devices; nothing was allocated on a device.
        TimeoutError: other workers are missing.
        OSError: the data cannot be read, the workdir cannot be written, or a port is taken.
    """
    stop = interruption.install_handlers()
    validate.validate(config)
    prepare = specs.partial(config.data.prepare, field="config.data.prepare", positional=2, training=True)
    objective = specs.partial(config.objective, field="config.objective", positional=2, training=True)
    prepare, objective = autograph.convert(prepare), autograph.convert(objective)
    adapt = config.adapt and specs.partial(config.adapt, field="config.adapt", positional=2)
    for index, spec in enumerate(config.callbacks):
        specs.partial(spec, field=f"config.callbacks[{index}]")
    train_source = open_source(config, config.data.train_split)
    evaluation_source = None
    if config.data.evaluation_split is not None:
        evaluation_source = open_source(config, config.data.evaluation_split)
    plan = strategy.plan(config.cluster)
    steps_per_epoch = check_fit(config, plan.num_replicas, train_source, evaluation_source)
    facts = _facts(config, train_source, evaluation_source)
    train = cache.cached(config.data, train_source, prepare, training=True)
    evaluation = cache.cached(config.data, evaluation_source, prepare, training=False)
    if config.cluster.requeue:
        slurm_requeue.enable_requeue(
            plan.worker_spec.rank, stop, progressed=lambda: False
        )  # Until the loop knows better.
    cluster = strategy.connect(plan, must_match=facts, workdir=workdir, stop=stop)
    if cluster.is_chief:  # One clock decides.
        stop.end = slurm_requeue.end_time(os.environ, stop.started, config.cluster.time_limit_seconds)

    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(_DTYPE_POLICIES[config.train.precision])
    total_steps = config.train.steps or max(1, round(config.train.epochs * steps_per_epoch))
    with cluster.scope():
        model = specs.build(config.model, field="config.model")
        local_steps = config.train.local_steps  # The optimizer counts these, and so does its schedule.
        optimizer = optimizer_lib.build_optimizer(config, local_steps * steps_per_epoch, local_steps * total_steps)
        if not isinstance(model, keras.Model):
            raise ValueError(f"config.model.target must return a keras.Model. Received: {type(model).__name__}")
    training_data = _training_data(config, *train, run_lib.replica_shard(cluster))
    trainer = context.build_context(cluster, config, model, optimizer, objective, element_spec(training_data(0, 1)))
    if adapt:
        with cluster.scope():
            adapt(model, lambda count: stream.first_examples(train_source, prepare, count, seed=config.seed))
        cluster.broadcast_variables(model.variables)  # Another kind of machine may have rounded otherwise.
    seed_generators.make_stateless(model, optimizer.iterations, cluster_lib.replica_id)
    reserved = [name for name in trainer.names if name in reporter.RESERVED]
    if reserved:
        raise ValueError(
            f"config.objective returns {reserved[0]!r}, a name that metrics.jsonl uses itself: choose another."
        )
    if config.checkpoint.best_metric not in (None, *trainer.names):
        raise ValueError(
            f"config.checkpoint.best_metric={config.checkpoint.best_metric!r} is not among what the objective "
            f"returns: {', '.join(trainer.names)}"
        )
    callbacks = from_config.make_callbacks(
        config,
        cluster,
        model,
        optimizer,
        trainer.names,
        epochs=math.ceil(total_steps / steps_per_epoch),
        steps=steps_per_epoch,
    )
    return run_lib.make_run(
        config,
        workdir,
        cluster,
        stop,
        trainer,
        callbacks=callbacks,
        training_data=training_data,
        evaluation_data=_evaluation_data(config, *evaluation, run_lib.replica_shard(cluster)),
        evaluation_examples=None if evaluation_source is None else len(evaluation_source),
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        batch_size=config.data.batch_size,
        verify=tuple(s.verify for s in (train_source, evaluation_source) if hasattr(s, "verify")),
        examples=functools.partial(replica_consistency.read_examples, {"train": train[0], "evaluation": evaluation[0]}),
    )


def open_source(config: config_lib.Config, split: str) -> stream.Source:
    """Makes the source of one split; no TensorFlow operation runs."""
    source = specs.build(config.data.source, split, field="config.data.source")
    if len(source) == 0:
        raise ValueError(f"config.data: the split {split!r} of {config.data.source['target']} has no examples.")
    return source


def check_fit(
    config: config_lib.Config,
    num_replicas: int,
    train_source: stream.Source,
    evaluation_source: stream.Source | None,
) -> int:
    """Checks batch sizes and class numbers against the data and the replicas.

    Returns:
        The number of steps in an epoch.

    Raises:
        ValueError: names the field, its value, and the number that it contradicts.
    """
    batch, pieces = config.data.batch_size, config.train.micro_batches * config.train.local_steps
    if batch % (num_replicas * pieces):
        lower = batch // (num_replicas * pieces) * num_replicas * pieces
        advice = f"{lower} or {lower + num_replicas * pieces}" if lower else str(num_replicas * pieces)
        micro = f" in {pieces} pieces each" if pieces > 1 else ""
        raise ValueError(
            f"config.data.batch_size={batch} cannot be divided among {num_replicas} replicas{micro}: "
            f"set it to {advice}, or change the number of replicas."
        )
    if run_lib.evaluation_batch_size(config) % num_replicas:
        raise ValueError(
            f"config.data.evaluation_batch_size={run_lib.evaluation_batch_size(config)} cannot be divided among "
            f"{num_replicas} replicas: set it to a multiple of {num_replicas}."
        )
    if len(train_source) < batch:
        raise ValueError(
            f"config.data.batch_size={batch} is more than the {len(train_source)} examples of the split "
            f"{config.data.train_split!r}: an epoch would have no step."
        )
    for split, source in ((config.data.train_split, train_source), (config.data.evaluation_split, evaluation_source)):
        classes, wanted = getattr(source, "num_classes", None), config.model.get("num_classes")
        if classes is not None and wanted is not None and classes != wanted:
            raise ValueError(
                f"config.model.num_classes={wanted}, and the split {split!r} of {config.data.source['target']} has "
                f"labels of {classes} classes: set config.model.num_classes to {classes}."
            )
    return len(train_source) // batch


def element_spec(dataset: tf.data.Dataset) -> dict[str, tf.TensorSpec]:
    """The shapes and dtypes of a batch of `dataset`.

    Raises:
        ValueError: `config.data.prepare` has not returned a dict of tensors whose shapes are known but for the first
            dimension.
    """
    spec = dataset.element_spec
    if not isinstance(spec, dict) or not spec:
        raise ValueError(f"config.data.prepare must return a dict of tensors. Received: {spec}")
    for name, tensor in spec.items():
        if tensor.shape.rank in (None, 0) or None in tensor.shape[1:].as_list():
            raise ValueError(
                f"config.data.prepare returns {name!r} of shape {tensor.shape}: every dimension but the first must be "
                "known, so that examples can be batched. Resize or crop the images, for instance."
            )
    return spec


def training_dataset(run: Run, *, first_step: int, last_step: int) -> tf.data.Dataset:
    """This worker's share of the steps [first_step, last_step); see `stream.training`."""
    return run.training_data(first_step, last_step)


def _evaluation_data(
    config: config_lib.Config,
    source: stream.Source | None,
    prepare: Callable[..., dict[str, tf.Tensor]],
    worker_share: stream.ReplicaShard,
) -> Callable[[], tuple[tf.data.Dataset, int]] | None:
    if source is None:
        return None
    batch = run_lib.evaluation_batch_size(config)
    # Made once, at the first evaluation: every later one takes another iterator of it.
    return functools.cache(
        lambda: stream.evaluation(source, prepare, worker_share, global_batch=batch, seed=config.seed)
    )


def _training_data(
    config: config_lib.Config,
    source: stream.Source,
    prepare: Callable[..., dict[str, tf.Tensor]],
    worker_share: stream.ReplicaShard,
) -> Callable[[int, int], tf.data.Dataset]:
    return stream.training(
        source,
        prepare,
        worker_share,
        global_batch=config.data.batch_size,
        seed=config.seed,
        shuffle=config.data.shuffle,
    )


def _facts(config: config_lib.Config, *sources: stream.Source | None) -> dict[str, str]:
    """What must be equal on all workers, in few words each: the config field by field, and the data."""
    plain = run_info.to_json(config)
    plain.pop("cluster")
    plain["data"].pop("cache_dir")  # Hosts may call their disks as they like.
    facts = {f"config.{name}": json.dumps(value) for name, value in diff.flatten(plain)}
    for split, source in zip(("train", "evaluation"), sources, strict=True):
        if source is not None:
            facts[f"examples of the {split} split"] = str(len(source))
            facts[f"fingerprint of the {split} split"] = getattr(source, "fingerprint", lambda: "")()
    return facts
