"""Makes the callbacks of `tfdist.fit`, `evaluate` and `predict` from what Keras accepts as `callbacks`."""

from typing import Any

import keras

from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code
from tfdist.keras_fit.script import context
from tfdist.training import api as trainer

# Callbacks of Keras that write files of their own.
_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in ("CSVLogger", "TensorBoard", "RemoteMonitor", "OrbaxCheckpoint")
    if hasattr(keras.callbacks, name)
)


def callback_placement() -> trainer.Placement:
    """Returns where callbacks run: in a script of tfdist.run on all workers, except for those that only write."""
    if not context.in_script():
        return trainer.Placement()
    return trainer.Placement(_runs_on_all_workers, lambda: context.running(own=False))


def _runs_on_all_workers(callback: keras.callbacks.Callback) -> bool:
    """The script's own callbacks, and Keras' except for those whose files Keras does not write by `model.save`."""
    if trainer.runs_on_all_workers(callback) or isinstance(callback, keras.callbacks.ModelCheckpoint):
        return True
    if hasattr(callback, "on_all_workers") or isinstance(callback, _WRITERS):
        return False
    kind = type(callback)
    return kind.__module__.startswith("keras.") or user_code.defines(kind)


def make_callbacks(
    cluster: Cluster,
    model: keras.Model,
    given: Any,
    *,
    verbose: int | str,
    epochs: int = 1,
    steps: int | None = None,
    workdir: Any = None,
) -> trainer.CallbackRunner:
    """Makes the callback runner of `tfdist.fit`, `evaluate` or `predict`. Collective: all workers call it.

    Args:
        cluster: the workers.
        model: the model; compiled, if it is trained or evaluated.
        given: what Keras accepts as `callbacks`: None, a callback, a list of callbacks, or a CallbackList.
        verbose: as in Keras; see `trainer.open_bar`.
        epochs: the epoch after which training ends.
        steps: steps of an epoch, an evaluation or a prediction.
        workdir: where the run is saved; None: it is not saved.

    Raises:
        ValueError: an element is not a callback, or BackupAndRestore is used without a workdir.
    """
    bar = trainer.open_bar(verbose, chief=cluster.is_chief)
    if isinstance(given, keras.callbacks.CallbackList):
        given = given.callbacks
    callbacks = []
    for callback in keras.tree.flatten(given or []):
        if not isinstance(callback, keras.callbacks.Callback):
            raise ValueError(
                "callbacks must hold objects of keras.callbacks.Callback, such as EarlyStopping(). "
                f"Received: {callback!r}"
            )
        if not isinstance(callback, keras.callbacks.BackupAndRestore):
            callbacks.append(callback)
        elif workdir is None and not context.in_script():
            raise ValueError(
                "BackupAndRestore is not needed: pass workdir to tfdist.fit, and the same script resumes. "
                f"Received: {callback.backup_dir!r} as its directory, and workdir=None"
            )
        elif cluster.is_chief and verbose:
            where = (
                f"tfdist saves and resumes in {workdir}" if workdir else "to save and resume, start with --workdir=DIR"
            )
            print(f"BackupAndRestore is ignored: {where}.", flush=True)
    callbacks = [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]
    placement = callback_placement()
    params = {"verbose": verbose, "epochs": epochs, "steps": steps}
    return trainer.CallbackRunner(
        cluster, model, model.optimizer if model.compiled else None, callbacks, bar, params, placement
    )
