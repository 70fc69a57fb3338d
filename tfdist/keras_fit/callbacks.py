"""Makes the callbacks of `tfdist.fit`, `evaluate` and `predict` from what Keras accepts as `callbacks`."""

import functools
import sys
from pathlib import Path
from typing import Any

import keras

from tfdist.cluster.cluster import Cluster
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import script_state
from tfdist.report import console
from tfdist.training import api as trainer


def _as_list(given: Any) -> list[Any]:
    return keras.tree.flatten((given.callbacks if isinstance(given, keras.callbacks.CallbackList) else given) or [])


def find_backup(given: Any, workdir: Path | None) -> keras.callbacks.BackupAndRestore | None:
    """Returns the BackupAndRestore whose directory the run uses; None: there is none, or `workdir` is given.

    Args:
        workdir: the directory of the run; None: that of the callback.
    """
    found = next((one for one in _as_list(given) if isinstance(one, keras.callbacks.BackupAndRestore)), None)
    if found is not None:
        place = found.backup_dir if workdir is None else workdir
        messages.log_once(f"BackupAndRestore: fit saves to {place}, and resumes from it, in tfdist's own format.")
    return found if workdir is None else None


def make_callbacks(
    cluster: Cluster,
    model: keras.Model,
    given: Any,
    *,
    verbose: int | str,
    epochs: int = 1,
    steps: int | None = None,
    saves_draws: bool = False,
) -> trainer.CallbackRunner:
    """Makes the callback runner of `tfdist.fit`, `evaluate` or `predict`. Collective: all workers call it.

    Args:
        given: what Keras accepts as `callbacks`: None, a callback, a list of callbacks, or a CallbackList.
        epochs: the epoch after which training ends.
        saves_draws: as for `CallbackRunner`; used only under tfdist.run, where callbacks draw the same random numbers
            on all workers.

    Raises:
        ValueError: an element is not a callback.
    """
    if verbose not in (0, 1, 2, "auto"):
        raise ValueError(f'verbose must be 0, 1, 2 or "auto". Received: {verbose!r}')
    bar = ProgressBar() if cluster.is_chief and verbose else None
    callbacks = []
    for callback in _as_list(given):
        if not isinstance(callback, keras.callbacks.Callback):
            raise ValueError(
                "callbacks must be instances of keras.callbacks.Callback, such as EarlyStopping(). "
                f"Received: {callback!r}"
            )
        if not isinstance(callback, keras.callbacks.BackupAndRestore | keras.callbacks.ProgbarLogger):
            callbacks.append(callback)
    params = {"verbose": verbose, "epochs": epochs, "steps": steps}
    in_script = script_state.in_script()
    script = functools.partial(script_state.tfdist_code, by_tfdist=False) if in_script else None
    return trainer.CallbackRunner(cluster, model, callbacks, bar, params, script, saves_draws and in_script)


class ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras' progress bar, on the chief only. It moves once per execution, not once per batch.

    It is the last callback, so that it shows what others add to the logs, such as the learning rate.
    """

    def __init__(self) -> None:
        super().__init__()
        # A log file gets no escape codes, and no line per execution.
        self._terminal = console.is_terminal(sys.stdout)

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params if self._terminal else params | {"verbose": 2})

    @property
    def moves(self) -> bool:
        return self.verbose == 1

    def move(self, done: int, logs: dict[str, float]) -> None:
        """Shows `done` steps of the epoch, evaluation or prediction, and its `logs` so far."""
        super().on_train_batch_end(done - 1, dict(sorted(logs.items())))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows nothing: logs are known only at the end of an execution."""

    on_test_batch_end = on_predict_batch_end = on_train_batch_end
