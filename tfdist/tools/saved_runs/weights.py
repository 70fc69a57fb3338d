"""The model of a run with the weights of a checkpoint, and the preparation of its input."""

import contextlib
from typing import Any

import keras

from tfdist.checkpoint import directory, restore
from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster
from tfdist.config import specs
from tfdist.data import inputs
from tfdist.data.stream import Prepare
from tfdist.report import files
from tfdist.tools.saved_runs import saved as saved_lib
from tfdist.tools.saved_runs.saved import SavedRun
from tfdist.training import setup


def load(saved: SavedRun, cluster: Cluster, which: str) -> keras.Model:
    """Returns the model of a run, made in the cluster's scope.

    A finished run needs no data for it: it is model.keras. Another checkpoint, "best" or a step, needs the data of the
    run, because its model is built again. Raises ValueError if there is no such checkpoint, or the model cannot be
    loaded.
    """
    if which == "newest" and _is_exported(saved):
        return _load_exported(saved, cluster)
    if saved.config is None:
        raise ValueError(
            f"{saved.workdir} is the run of a script, and only the script can build its model for a checkpoint. This "
            f"command uses {saved_lib.MODEL}, "
            + ("without --checkpoint." if which != "newest" else "which a finished run has: run the script again.")
        )
    run = setup.build_run(saved.config, saved.workdir, cluster, config_file=None)
    found = restore.find(cluster, lambda: checkpoint_format.find(saved.checkpoints, which))
    restore.restore(cluster, found, run.variables)
    contextlib.ExitStack().enter_context(run.evaluated_weights())  # Until the process ends.
    with cluster.scope():
        run.objective.finalise_weights()
    return run.context.model


def preparation(saved: SavedRun) -> Prepare:
    """Returns prepare(batch, seeds, *, training) of a run with `config.data.finish`; it does nothing for a script."""
    if saved.config is None:
        return lambda batch, seeds, *, training: batch
    data = saved.config.data
    prepare = specs.partial(data.prepare, field="config.data.prepare", positional=2, training=True)
    finish = data.finish and specs.partial(data.finish, field="config.data.finish", positional=1, training=True)
    return inputs.finish_on_host(prepare, finish)


def input_shape(model: keras.Model) -> tuple[int | None, ...] | None:
    """Returns the shape of an example of the model's only input, such as (28, 28, 1); None: not known."""
    shape: Any = getattr(model, "input_shape", None)
    return tuple(shape[1:]) if isinstance(shape, tuple) else None


def several(model: Any) -> bool:
    """Returns whether a model has several inputs, which are known by name."""
    return len(getattr(model, "inputs", None) or ()) > 1


def _is_exported(saved: SavedRun) -> bool:
    finished = files.read_json(saved.workdir / saved_lib.FINISHED, "remove it, and train again.")
    newest = directory.newest_step(saved.checkpoints)
    complete = finished is not None and newest in (None, finished.get("step"))
    return complete and (saved.workdir / saved_lib.MODEL).is_file()


def _load_exported(saved: SavedRun, cluster: Cluster) -> keras.Model:
    path = saved.workdir / saved_lib.MODEL
    if saved.config is not None:
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
