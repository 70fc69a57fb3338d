"""Callbacks for trackers, each with its real library: one run of the tracker for one run of tfdist."""

import importlib.util
import json
import os
import pathlib
import struct
import subprocess
import sys

import keras
import pytest
from launching import REPOSITORY, worker_environment
from processes import until

from tfdist.tools.many_runs import trackers


def needs(name, *marks):
    """Skips without the library; `marks`: others."""
    missing = importlib.util.find_spec(name) is None
    return pytest.param(name, marks=[*marks, pytest.mark.skipif(missing, reason=f"pip install 'tfdist[{name}]'")])


_BLOCK = 2**15
LIBRARIES = [needs("mlflow"), needs("wandb"), needs("trackio")]


@pytest.fixture(scope="module")
def trackio_directory(tmp_path_factory):
    """The directory of trackio, which each process reads once from the environment."""
    return tmp_path_factory.mktemp("trackio")


@pytest.fixture
def at(tmp_path, trackio_directory, monkeypatch):
    """A directory in which the other trackers keep their files; its name is that of the project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(trackio_directory))
    return tmp_path


def field_of_project(name):
    """The argument of the tracker that names the project."""
    return "experiment" if name == "mlflow" else "project"


def values(name, folder):
    """What the tracker has of the run in `folder`: (number of runs, epochs with the loss, config, files of a model)."""
    if name == "mlflow":
        import mlflow

        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        client = mlflow.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
        [experiment] = [one for one in client.search_experiments() if one.name == folder.name]
        runs = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(runs[0].info.run_id, "loss")
        models = [one.path for one in client.list_artifacts(runs[0].info.run_id)]
        assert runs[0].info.status == "FINISHED"
        return len(runs), [one.step for one in history], runs[0].data.params, models
    if name == "trackio":
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        runs = trackio.Api().runs(folder.name)
        rows = SQLiteStorage.get_logs(folder.name, runs[0].name)
        models = list(pathlib.Path(os.environ["TRACKIO_DIR"]).rglob(f"{runs[0].name}.keras"))
        return len(list(runs)), [row["step"] for row in rows], runs[0].config, models
    return of_wandb(folder)


def records(file):
    """Yields the records of an offline file of wandb: LevelDB's log format, after a header of 7 bytes."""
    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if _BLOCK - place % _BLOCK < 7:  # Too short for a header.
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            yield whole
            whole = b""


def of_wandb(folder):
    """Reads the offline files, one for each start, after wandb's own process has finished them."""
    from wandb.proto import wandb_internal_pb2

    def parsed(file):
        return [wandb_internal_pb2.Record.FromString(data) for data in records(file)]

    for file in folder.rglob("run-*.wandb"):
        until(lambda file=file: any(one.HasField("exit") for one in parsed(file)), 60)
    ids, steps, config, models = set(), [], {}, []
    for file in sorted(folder.rglob("run-*.wandb")):
        for record in parsed(file):
            if record.run.run_id:
                ids.add(record.run.run_id)
                config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
            found = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
            steps += [found["_step"]] if "loss" in found else []
            models += [entry.path for entry in record.artifact.manifest.contents]
            models += [entry.path for entry in record.request.log_artifact.artifact.manifest.contents]
    return len(ids), steps, config, models


@pytest.mark.parametrize(
    "name", [needs("mlflow"), needs("wandb", pytest.mark.slow), needs("trackio", pytest.mark.slow)]
)
def test_an_interrupted_run_is_one_run_of_the_tracker(at, name):
    """A process is killed after its second epoch, before its first checkpoint; the next one does all epochs again."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    where = {field_of_project(name): at.name}
    workdir, config = at / "run", {"learning_rate": {"peak": 0.1}, "model": {"target": "a:b"}}
    for epochs in (2, 3):
        callback = getattr(trackers, name)(**where, run_workdir=str(workdir), run_config=config)
        callback.set_model(model)
        for epoch in range(epochs):
            callback.on_epoch_end(epoch, {"loss": 1.0 / (epoch + 1), "val_loss": 2.0})
        if epochs == 2 and name != "mlflow":
            callback.finish()  # In place of the end of the process, which a test of one process does not have.
    callback.on_train_end()
    count, steps, saved, models = values(name, at)
    assert (count, steps) == (1, [1, 2, 3])
    assert saved["learning_rate.peak"] in (0.1, "0.1") and saved["model.target"] == "a:b"
    assert len(models) == 1


@pytest.mark.parametrize("name", [needs("mlflow")])
def test_a_store_that_cannot_be_used_is_one_message(at, name):
    (at / "file").touch()
    callback = trackers.mlflow(store=str(at / "file"))
    with pytest.raises(ValueError, match=r"mlflow cannot open a run: .*/file.* Correct its arguments, or remove the"):
        callback.on_epoch_end(0, {"loss": 1.0})


@pytest.mark.parametrize("name", [needs("mlflow")])
def test_two_runs_begin_one_experiment(at, name, monkeypatch):
    """The second run makes the experiment after the first one has found that there is none."""
    import mlflow

    real = mlflow.MlflowClient.get_experiment_by_name
    begun = []

    def find(client, experiment):
        found = real(client, experiment)
        if not begun:
            begun.append(experiment)
            trackers.mlflow(experiment="test", run_workdir=str(at / "second")).begin("", {})
        return found

    monkeypatch.setattr(mlflow.MlflowClient, "get_experiment_by_name", find)
    trackers.mlflow(experiment="test", run_workdir=str(at / "first")).begin("", {})
    client = mlflow.MlflowClient(tracking_uri=(at / "mlruns").as_uri())
    [experiment] = [one for one in client.search_experiments() if one.name == "test"]
    assert {run.info.run_name for run in client.search_runs([experiment.experiment_id])} == {"first", "second"}


CONFIG = """
import os, signal
import keras
from tfdist.configs import line
def get_config():
    config = line.get_config()
    config.callbacks = [{"target": "tfdist.tools.many_runs.trackers:NAME", WHERE}, {"target": "tracked:Stop"}]
    return config
class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1 and "STOPS" in os.environ:
            os.kill(os.getpid(), signal.SIGUSR1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_run_on_two_workers_that_is_stopped(at, name):
    """Only the chief logs; the workers agree, and a stopped run goes on in the same run of the tracker."""
    where = f'"{field_of_project(name)}": "{at.name}"'
    (at / "tracked.py").write_text(CONFIG.replace("NAME", name).replace("WHERE", where))
    words = ["--config=tracked.py", "--workdir=run", "--config.train.epochs=4", "--config.train.steps=none"]
    command = [sys.executable, "-m", "tfdist.launch", "--workers=2", "--", *words]
    env = worker_environment() | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path[1:]])}
    env.pop("WANDB_SERVICE", None)  # wandb's own process, of the test before in this process.
    for more, code in (({"STOPS": "1"}, 75), ({}, 0)):
        done = subprocess.run(command, cwd=at, env=env | more, capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        assert "is not saved in checkpoints" not in done.stderr
    count, steps, saved, models = values(name, at)
    assert (count, steps, len(models)) == (1, [1, 2, 3, 4], 1)
    assert saved["data.batch_size"] in (8, "8")
    assert json.loads((pathlib.Path(at) / "run" / f"tracker-{name}.json").read_text())["epochs_logged"] == 4
