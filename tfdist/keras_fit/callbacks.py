"""Makes the callbacks of `tfdist.fit`, `evaluate` and `predict` from what Keras accepts as `callbacks`."""

import functools
import sys
from typing import Any

import keras

from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit.script import context
from tfdist.report import console
from tfdist.training import api as trainer


def _as_list(given: Any) -> list[Any]:
    return keras.tree.flatten((given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given) or [])


def make_callbacks(
    cluster: Cluster,
    model: keras.Model,
    given: Any,
    *,
    verbose: int | str,
    epochs: int = 1,
    steps: int | None = None,
    workdir: Any = None,
    saves_draws: bool = False,
) -> trainer.CallbackRunner:
    """Makes the callback runner of `tfdist.fit`, `evaluate` or `predict`. Collective: all workers call it.

    Args:
        given: what Keras accepts as `callbacks`: None, a callback, a list of callbacks, or a CallbackList.
        epochs: the epoch after which training ends.
        saves_draws: as for `CallbackRunner`; only under tfdist.run, where callbacks draw the same on all workers.

    Raises:
        ValueError: an element is not a callback, or BackupAndRestore is used without a workdir.
    """
    if verbose not in (0, 1, 2, "auto"):
        raise ValueError(f'verbose must be 0, 1, 2 or "auto". Received: {verbose!r}')
    bar = ProgressBar(1 if verbose == "auto" else int(verbose)) if cluster.is_chief and verbose else None
    callbacks = []
    for callback in _as_list(given):
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
        elif cluster.is_chief:
            saves = f"tfdist saves and resumes in {workdir}"
            where = saves if workdir else "to save and resume, start with --workdir=DIR"
            print(f"BackupAndRestore is ignored: {where}.", flush=True)
    callbacks = [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]
    params = {"verbose": verbose, "epochs": epochs, "steps": steps}
    if not context.in_script():
        return trainer.CallbackRunner(cluster, model, callbacks, bar, params)
    script = functools.partial(context.running, by_tfdist=False)
    return trainer.CallbackRunner(cluster, model, callbacks, bar, params, script, saves_draws)


class ProgressBar(keras.callbacks.Callback):
    """Prints like Keras' ProgbarLogger, but once per execution, not once per batch; on the chief only.

    It is the last callback, so that it shows what others add to the logs, such as the learning rate.
    """

    def __init__(self, verbose: int):
        """`verbose` is 1 for a bar and 2 for a line at the end of each epoch."""
        super().__init__()
        self._verbose = verbose
        # A log file gets no escape codes, and no line per execution.
        self._terminal = console.is_terminal(sys.stdout)
        self._bar: keras.utils.Progbar | None = None
        self._title = ""
        self._in_fit = False
        self._done = 0

    @property
    def moves(self) -> bool:
        return self._terminal and self._verbose == 1

    def move(self, done: int, logs: dict[str, float]) -> None:
        """Shows `done` steps of the epoch, evaluation or prediction, and its `logs` so far."""
        self._done = done
        if self._bar is not None and self._bar.verbose == 1:
            _update(self._bar, done, dict(sorted(logs.items())), finalize=False)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._in_fit = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._in_fit = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        epochs = self.params["epochs"]
        self._open(f"Epoch {epoch + 1}/{epochs}" if epochs > 1 else "")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._close_bar(logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not self._in_fit:
            self._open()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        if not self._in_fit:
            self._close_bar(logs)

    def on_predict_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._open()

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        self._close_bar(None)

    def _open(self, title: str = "") -> None:
        verbose = self._verbose if self._terminal else 2
        self._bar = keras.utils.Progbar(self.params["steps"], verbose=verbose, stateful_metrics=())
        self._done = 0
        self._title = title
        if title and self._terminal:
            print(title, flush=True)

    def _close_bar(self, logs: dict[str, Any] | None) -> None:
        if self._bar is None:
            return
        self._bar.target = self._bar.target or self._done
        if self._title and not self._terminal:
            print(self._title, end=" - ", flush=True)
        _update(self._bar, self._bar.target, logs or {}, finalize=True)
        self._bar = None


def _update(bar: keras.utils.Progbar, done: int, logs: dict[str, Any], *, finalize: bool) -> None:
    """Shows each value of `logs` as it is: Progbar averages those that it does not know to be stateful."""
    bar.stateful_metrics.update(logs)
    bar.update(done, list(logs.items()), finalize=finalize)
