"""The model of a run with the weights of a checkpoint, and its outputs for all examples of a source."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint import directory, restore
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster import strategy
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.devices import gather
from tfdist.config import specs
from tfdist.data import inputs, stream
from tfdist.data.stream import Prepare, Source
from tfdist.report import files
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun
from tfdist.training import run as run_lib
from tfdist.training import setup


def connect(saved: SavedRun, which: str) -> Cluster:
    """Connects the workers of a command, with the options of the run; `which`: the checkpoint."""
    must_match = {"the workdir": str(saved.workdir), "--checkpoint": which}
    return strategy.connect(strategy.plan(saved.config.cluster), must_match=must_match)


def load(saved: SavedRun, cluster: Cluster, which: str) -> keras.Model:
    """Returns the model of a run, made in the cluster's scope.

    For the newest checkpoint of a finished run this is model.keras, and needs no data. In all other cases the model is
    built again, which needs the data of the run. Raises ValueError if there is no such checkpoint, or the model cannot
    be loaded.
    """
    if which == "newest" and _is_exported(saved):
        return _load_exported(saved, cluster)
    run = setup.build_run(saved.config, saved.workdir, cluster, trains=False)
    found = restore.find(cluster, lambda: checkpoint_format.find(saved.checkpoints, which))
    restore.restore(cluster, found, run.variables)
    contextlib.ExitStack().enter_context(run.evaluated_weights())  # Until the process ends.
    with cluster.scope():
        run.objective.finalise_weights()
    return run.context.model


def _is_exported(saved: SavedRun) -> bool:
    finished = files.read_json(saved.workdir / saved_lib.FINISHED, "remove it, and train again.")
    newest = directory.newest_step(saved.checkpoints)
    complete = finished is not None and newest in (None, finished.get("step"))
    return complete and (saved.workdir / saved_lib.MODEL).is_file()


def _load_exported(saved: SavedRun, cluster: Cluster) -> keras.Model:
    path = saved.workdir / saved_lib.MODEL
    specs.resolve(saved.config.model, field="config.model")  # Its module registers its layers.
    try:
        with cluster.scope():
            return keras.models.load_model(path, compile=False)
    except (ValueError, TypeError, OSError) as error:
        why = " ".join(str(error).split())[:400]
        raise ValueError(
            f"Keras cannot load {path}: {why} A layer or function of your own needs the decorator "
            "@keras.saving.register_keras_serializable() in a module that the config names."
        ) from None


def _preparation(saved: SavedRun) -> Prepare:
    """Returns prepare(batch, seeds, *, training) of a run, followed by `config.data.finish`."""
    data = saved.config.data
    prepare = specs.partial(data.prepare, field="config.data.prepare", positional=2, training=True)
    finish = data.finish and specs.partial(data.finish, field="config.data.finish", positional=1, training=True)
    return inputs.finish_on_host(prepare, finish)


def outputs(
    saved: SavedRun, cluster: Cluster, model: keras.Model, source: Source, *, keep: tuple[str, ...] = ()
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Calls the model for every example once, prepared as in an evaluation. Collective: all workers call it.

    `keep`: the columns of the prepared batch to return as well, if they are there. Returns the outputs [examples, ...]
    as float32 in the order of `source`, and these columns.
    """
    data = saved.config.data
    size = min(data.evaluation_batch_size or data.batch_size, len(source))
    batch = -(-size // cluster.num_replicas) * cluster.num_replicas
    shard, key = run_lib.replica_shard(cluster), saved.input_key()
    dataset, steps = stream.evaluation(source, _preparation(saved), shard, global_batch=batch, seed=0)

    def replica(element: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        columns, _ = element
        kept = {key: columns[key] for key in keep if key in columns}
        return tf.cast(tf.convert_to_tensor(model(columns[key], training=False)), tf.float32), kept

    @tf.function(autograph=False)
    def step(iterator: Iterator) -> Any:
        return gather.gather(cluster, cluster.strategy.run(replica, args=(next(iterator),)))

    iterator, found = cluster.distribute(dataset), []
    for number in range(1, steps + 1):
        with cluster.monitor.in_collective("predictions"):
            found.append(tf.nest.map_structure(lambda value: value.numpy(), step(iterator)))
        cluster.monitor.note_progress(number)
    values, kept = tf.nest.map_structure(lambda *parts: np.concatenate(parts)[: len(source)], *found)
    return values, kept
