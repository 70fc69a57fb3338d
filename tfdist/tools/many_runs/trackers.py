"""Callbacks for experiment trackers: MLflow, Weights & Biases and trackio, with the extras of these names.

    callbacks=[{"target": "tfdist.tools.many_runs.trackers:mlflow", "experiment": "digits"}]

Only the chief calls them. A run of tfdist is one run of the tracker, however often it is interrupted: its id is in the
checkpoints and in the workdir, as `tracker-mlflow.json`. They get the config, the values of each epoch, and at the end
the model. Nothing is sent over the network unless you ask for it. A script passes the callback to `fit`, with
`run_workdir` and `run_config` if it has them.
"""

import importlib.util
import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfdist.config import diff, user_code
from tfdist.report import files

# What the trackers take as the value of a parameter, in characters.
_LONGEST_VALUE = 500


class Tracker(keras.callbacks.Callback):
    """What the trackers have in common: the id of the tracker's run, and the last epoch that it knows.

    Raises ValueError if the package of the tracker is not installed.

    Args:
        name: of the tracker, for its file in the workdir.
        run_workdir: the workdir of the run; tfdist sets it for the callbacks of a config. None: without a file, a run
            that is killed before its first checkpoint begins a second run of the tracker.
        run_config: the config of the run; tfdist sets it, too.
        model: whether the final model is uploaded.
    """

    # The library's object, in a slot: a checkpoint holds the other attributes.
    __slots__ = ("handle",)

    def __init__(self, name: str, run_workdir: str | None, run_config: Mapping[str, Any] | None, model: bool):
        super().__init__()
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"{name} is not installed: pip install 'tfdist[{name}]'.")
        self._name, self._workdir, self._with_model = name, run_workdir, model
        self._config = {
            key: value if isinstance(value, int | float | None) else f"{value}"[:_LONGEST_VALUE]
            for key, value in diff.flatten(dict(run_config or {}))
        }
        # In the checkpoints, as they are attributes of a callback.
        self.run_id, self.epochs_logged = "", 0
        self.handle: Any = None

    def begin(self, run_id: str, config: Mapping[str, Any]) -> str:
        """Sets `handle`, and opens the tracker's run `run_id`, or begins one if that is ""; returns its id."""
        raise NotImplementedError

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        """Logs the values after `epoch` epochs."""
        self.handle.log(dict(values), step=epoch)

    def upload(self, path: str) -> None:
        """Adds the file of the model."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ends the tracker's run."""
        self.handle.finish()

    def run_name(self) -> str | None:
        """Returns the name of the workdir, for the tracker's run; None without a workdir."""
        return None if self._workdir is None else Path(self._workdir).name

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the values of the epoch, unless the tracker has them from before an interruption."""
        self._open()
        if epoch + 1 > self.epochs_logged:
            self.log({name: float(value) for name, value in (logs or {}).items()}, epoch + 1)
            self.epochs_logged = epoch + 1
            self._write()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Uploads the model, and ends the tracker's run."""
        self._open()
        if self._with_model:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.keras")
                self.model.save(path)
                self.upload(path)
        self.finish()

    def _open(self) -> None:
        # Not in on_train_begin: the attributes of a checkpoint are restored after it.
        if self.handle is not None:
            return
        known = self._read()
        if not self.run_id or known.get("run_id") == self.run_id:
            self.run_id = known.get("run_id", self.run_id)
            self.epochs_logged = known.get("epochs_logged", self.epochs_logged)
        try:
            self.run_id = self.begin(self.run_id, self._config)
        except Exception as error:  # Each library has errors of its own.
            advice = "Correct its arguments, or remove the callback: the same command resumes."
            raise ValueError(f"{self._name} cannot open a run: {user_code.message(error)} {advice}") from None
        self._write()

    def _path(self) -> Path | None:
        return None if self._workdir is None else Path(self._workdir, f"tracker-{self._name}.json")

    def _read(self) -> dict[str, Any]:
        path = self._path()
        try:
            return {} if path is None else files.read_json(path) or {}
        except (OSError, ValueError):
            return {}

    def _write(self) -> None:
        path = self._path()
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write_json(path, {"run_id": self.run_id, "epochs_logged": self.epochs_logged})


class mlflow(Tracker):
    """Logs to MLflow.

    Args:
        experiment: the experiment of the run; it is made if there is none.
        store: the tracking URI, or a directory: `mlflow ui --backend-store-uri mlruns` shows it.
        model, run_workdir, run_config: see `Tracker`.
    """

    def __init__(
        self,
        experiment: str = "tfdist",
        store: str = "mlruns",
        *,
        model: bool = True,
        run_workdir: str | None = None,
        run_config: Mapping[str, Any] | None = None,
    ):
        super().__init__("mlflow", run_workdir, run_config, model)
        self._experiment = experiment
        self._store = store if "://" in store else Path(store).expanduser().absolute().as_uri()

    def begin(self, run_id: str, config: Mapping[str, Any]) -> str:
        import mlflow

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 prefers databases.
        self.handle = mlflow.MlflowClient(tracking_uri=self._store)
        if run_id:
            self.handle.update_run(run_id, status="RUNNING")
            return run_id
        try:
            found = self.handle.get_experiment_by_name(self._experiment)
            of = found.experiment_id if found else self.handle.create_experiment(self._experiment)
        except mlflow.MlflowException:  # Another run of a sweep makes it at the same time.
            found = self.handle.get_experiment_by_name(self._experiment)
            if found is None:
                raise
            of = found.experiment_id
        made = self.handle.create_run(of, run_name=self.run_name()).info.run_id
        for name, value in config.items():
            self.handle.log_param(made, name.replace("[", ".").replace("]", ""), value)
        return made

    def log(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self.handle.log_metric(self.run_id, name, value, step=epoch)

    def upload(self, path: str) -> None:
        self.handle.log_artifact(self.run_id, path)

    def finish(self) -> None:
        self.handle.set_terminated(self.run_id)


class wandb(Tracker):
    """Logs to Weights & Biases; offline, the files are in the workdir for `wandb sync`.

    Args:
        project: the project of the run.
        mode: "offline" or "online".
        model, run_workdir, run_config: see `Tracker`.
    """

    def __init__(
        self,
        project: str = "tfdist",
        mode: str = "offline",
        *,
        model: bool = True,
        run_workdir: str | None = None,
        run_config: Mapping[str, Any] | None = None,
    ):
        super().__init__("wandb", run_workdir, run_config, model)
        self._project, self._mode = project, mode

    def begin(self, run_id: str, config: Mapping[str, Any]) -> str:
        import wandb

        made = run_id or uuid.uuid4().hex[:12]
        self.handle = wandb.init(
            project=self._project,
            id=made,
            name=self.run_name(),
            resume="allow",
            mode=self._mode,
            dir=self._workdir,
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        return made

    def upload(self, path: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"model-{self.run_id}", type="model")
        artifact.add_file(path)
        self.handle.log_artifact(artifact)


class trackio(Tracker):
    """Logs to trackio, on this machine: `trackio show` shows it.

    Args:
        project: the project of the run.
        model, run_workdir, run_config: see `Tracker`.
    """

    def __init__(
        self,
        project: str = "tfdist",
        *,
        model: bool = True,
        run_workdir: str | None = None,
        run_config: Mapping[str, Any] | None = None,
    ):
        super().__init__("trackio", run_workdir, run_config, model)
        self._project = project

    def begin(self, run_id: str, config: Mapping[str, Any]) -> str:
        import trackio

        # Runs have names, which are their ids.
        made = run_id or f"{self.run_name() or 'run'}-{uuid.uuid4().hex[:6]}"
        self.handle = trackio.init(project=self._project, name=made, resume="allow", config=dict(config), embed=False)
        return made

    def upload(self, path: str) -> None:
        import trackio

        # Files are of a project, and have one name each.
        renamed = os.path.join(os.path.dirname(path), f"{self.run_id}.keras")
        os.rename(path, renamed)
        trackio.save(renamed, project=self._project)
