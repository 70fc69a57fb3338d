"""Builds a run from a config: checks it against data and devices, connects the workers, builds the model."""

import dataclasses
import json
import os
from pathlib import Path

import keras

from tfdist import config as config_lib
from tfdist.checkpoint import directory
from tfdist.cluster import interruption, slurm_requeue, strategy
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import replicas as replicas_lib
from tfdist.cluster.discovery import slurm_job
from tfdist.config import diff, specs
from tfdist.data import guard
from tfdist.data import inputs as inputs_lib
from tfdist.data.feed import Feed
from tfdist.data.pipelines import Inputs
from tfdist.report import files, run_info
from tfdist.training import features
from tfdist.training import run as run_lib
from tfdist.training.hooks import Hooks
from tfdist.training.run import Run
from tfdist.training.step import build_context as build_context_lib
from tfdist.training.step import learning_rate
from tfdist.training.step import optimizer as optimizer_lib
from tfdist.training.step.context import StepContext
from tfdist.training.step.random_numbers import seed_generators

_DTYPE_POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def build_run(
    config: config_lib.Config,
    workdir: Path,
    cluster: Cluster | None = None,
    *,
    config_file: str = "",
    trains: bool = True,
) -> Run:
    """Checks the config, cheapest checks first; connects to the other workers; builds the model.

    Args:
        cluster: the cluster of a process that is already connected; None: connects, with the options `config.cluster`.
        config_file: the file of the config, for the log; "": unknown.
        trains: False: the run only evaluates, so the batch size need not be a multiple of the number of replicas, and
            nothing is written to `workdir`.

    Raises:
        StopError: a stop was requested before all workers connected.
        ValueError: the config contradicts itself, the data, the devices or the model.
        TimeoutError: other workers are missing.
        OSError: the data cannot be read, the workdir cannot be written, or a port is taken.
    """
    stop = interruption.install_handlers()
    features.validate_config(config)
    inputs = inputs_lib.open_inputs(config)
    config = learning_rate.resolve(config)
    plan = strategy.plan(config.cluster, communication=config.communication)
    sizes = inputs_lib.make_sizes(config, inputs, (cluster or plan).num_replicas, trains=trains)
    for feature in features.ALL:
        inputs = feature.change_inputs(config, inputs, sizes.replicas)
    if cluster is None:
        cluster = connect(config, plan, inputs, workdir, stop, writes=trains)
    guard.begin(guard.Guarded(several_workers=cluster.num_workers > 1))
    config = _with_saved_xla(config, workdir)
    feed = inputs.make_feed(config, inputs, sizes, run_lib.replica_shard(cluster), cluster)
    context, chosen = build_model(config, cluster, inputs, feed)
    _, warmup_note = optimizer_lib.schedule_steps(config.learning_rate, sizes.steps_per_epoch, sizes.total_steps)
    notes = (*feed.notes, warmup_note, learning_rate.note(config))
    run = Run(
        config=config,
        workdir=workdir,
        cluster=cluster,
        stop=stop,
        context=context,
        feed=feed,
        hooks=Hooks(),
        log=run_lib.Log(config_file=config_file, notes=tuple(filter(None, notes)), chosen=tuple(chosen)),
        evaluated_weights=optimizer_lib.evaluated_weights(config, cluster, context.model, context.optimizer),
    )
    for feature in features.ALL:
        run = feature.apply(run)
    return run


def _with_saved_xla(config: config_lib.Config, workdir: Path) -> config_lib.Config:
    """Returns the config. If it does not set `train.xla`, the field gets the value of the run that is resumed."""
    saved = run_info.saved_xla(workdir) if config.train.xla is None else config.train.xla
    return dataclasses.replace(config, train=dataclasses.replace(config.train, xla=saved))


def connect(
    config: config_lib.Config,
    plan: strategy.ClusterPlan,
    inputs: Inputs,
    workdir: Path,
    stop: interruption.StopRequest,
    *,
    writes: bool,
) -> Cluster:
    """Connects to the other workers, which must have the same config and data, and makes the strategy.

    Args:
        writes: whether the run writes to `workdir`: all workers must then share it, and it is created if missing.
    """
    if config.cluster.requeue:
        rank = plan.worker_spec.rank
        # In effect until `opening.open_run`: the job is requeued if the start fails, but not after a stop request.
        slurm_requeue.enable_requeue(rank, stop, lambda: stop.reason is None and slurm_job.few_restarts())
    try:
        cluster = strategy.connect(
            plan, must_match=_must_match(config, inputs), workdir=workdir if writes else None, stop=stop
        )
    except interruption.StopError as error:
        raise interruption.StopError(f"{error}: {directory.describe_remaining(workdir / 'checkpoints')}") from None
    cluster.monitor.waits_for_file = files.current_wait
    if cluster.is_chief:  # Only the chief checks the time limit.
        stop.job_end = slurm_job.end_time(os.environ)
        if config.cluster.time_limit_seconds is not None:
            stop.end = stop.started + config.cluster.time_limit_seconds
    return cluster


def _must_match(config: config_lib.Config, inputs: Inputs) -> dict[str, str]:
    """Returns the values that must be equal on all workers: fields of the config, and facts of the data."""
    plain = diff.to_json(config)
    plain.pop("cluster")
    plain["data"].pop("cache_dir")  # Hosts may name their disks differently.
    values = {f"config.{name}": json.dumps(value) for name, value in diff.flatten(plain)}
    for split, source in (("train", inputs.train_source), ("evaluation", inputs.evaluation_source)):
        if source is not None:
            values[f"examples of the {split} split"] = str(len(source))
            values[f"fingerprint of the {split} split"] = getattr(source, "fingerprint", lambda: "")()
    return values


def build_model(
    config: config_lib.Config, cluster: Cluster, inputs: Inputs, feed: Feed
) -> tuple[StepContext, list[str]]:
    """Builds model, objective and optimizer. Returns the step's context, and log lines about automatic choices."""
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(_DTYPE_POLICIES[config.train.precision])
    with cluster.scope():
        model = specs.build(config.model, field="config.model")
        if not isinstance(model, keras.Model):
            raise ValueError(f"config.model.target must return a keras.Model. Received: {type(model).__name__}")
        optimizer = optimizer_lib.build_optimizer(config, feed.sizes.steps_per_epoch, feed.sizes.total_steps)
    optimizer_lib.check_optimizer(optimizer)
    chosen: list[str] = []
    for feature in features.ALL:
        chosen.extend(feature.change_model(config, cluster, model))
    objective = build_context_lib.build_objective(
        cluster,
        config,
        model,
        optimizer,
        inputs.objective,
        feed.spec,
        compiles=all(feature.compiles(config, cluster, model) for feature in features.ALL),
    )
    if inputs.adapt:  # Before the optimizer is built: its slots may be initialised from the weights.
        with cluster.scope():
            inputs.adapt(model, feed.first_batch)
        cluster.broadcast_variables(model.variables)  # Because processors may round differently.
    context = build_context_lib.build_context(cluster, config, objective, optimizer)
    optimizer_lib.start_averages(optimizer, model.trainable_variables)
    seed_generators.make_stateless(model, optimizer.iterations, replicas_lib.replica_id, config.seed)
    return context, chosen
