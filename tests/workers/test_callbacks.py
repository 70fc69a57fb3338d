"""Keras callbacks under tfdist.fit: the same calls, decisions and files as under Keras' own fit."""

import json
import pathlib
import re
import signal
import sys
from typing import NamedTuple

import followed as trained
import keras
import numpy as np
import on_workers
import processes
import pytest
import small_runs
import tensorflow as tf
from launching import on_a_terminal, run_all, train_command, worker_environment
from parameters import on_topologies, sizes
from small_runs import data
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tfdist
from tfdist import config as c
from tfdist.keras_fit import callbacks
from tfdist.training import loop, setup
from tfdist.training.features import callback_state


def is_killed(commands: list[list[str]], each: list[dict[str, str]]) -> None:
    """Runs a command that kills itself."""
    codes, outputs = processes.run(commands, each, timeout=1500.0)
    assert codes == [-signal.SIGKILL], outputs


# The trials of each topology that Keras can also run, and those that it cannot.
TRIALS = {
    "two devices, slow": ["others", "executions", "epochs", "batches", "cut_short", "not_finite", "own", "averaged"],
    "two workers": ["epochs", "own"],
    "two workers, slow": ["batches", "averaged"],
}
OF_TFDIST = {
    "one device, slow": ["resumed"],
    "two devices, slow": ["resumed", "resumed_after_kill"],
    "two workers": ["differing"],
    "two workers, slow": ["resumed", "writers"],
}
OF_KERAS = {"keras": ["epochs", "own"]}
OF_KERAS["keras, slow"] = ["others", "executions", "batches", "cut_short", "not_finite", "averaged"]
TOLD = ("epochs", "batches", "executions", "cut_short")


class Followed(NamedTuple):
    """What a topology leaves behind: recorded results and output of each worker, and the directory of their files."""

    results: list[dict]
    printed: list[str]
    directory: pathlib.Path


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """topology, or "keras" or "keras, slow" for Keras' own fit -> Followed."""

    def follow(topology: str) -> Followed:
        directory = tmp_path_factory.mktemp("followed")
        workers, devices = (1, 1) if topology in OF_KERAS else sizes(topology)
        how = ["keras" if topology in OF_KERAS else "tfdist", devices, directory]
        trials = [*OF_KERAS.get(topology, ()), *TRIALS.get(topology, ()), *OF_TFDIST.get(topology, ())]
        if "resumed_after_kill" in trials:
            on_workers.call(trained.run, *how, "killed", run=is_killed)
        printed: list[str] = []

        def run(commands: list[list[str]], each: list[dict[str, str]]) -> None:
            printed.extend(run_all(commands, each, timeout=1500.0) if workers > 1 else [on_a_terminal(*commands)])

        results = on_workers.call(trained.run, *how, *trials, workers=workers, run=run)
        return Followed(results, printed, directory)

    return processes.measure_groups(follow, ("keras", "two workers"))


def of_keras(followed, trial):
    """What Keras' own fit has recorded in a trial."""
    (found,) = followed(next(name for name, trials in OF_KERAS.items() if trial in trials)).results
    return found[trial]


@pytest.mark.parametrize(("topology", "trial"), on_topologies(TRIALS, (*TOLD, "not_finite", "others")))
def test_callbacks_are_called_as_by_keras(followed, topology, trial):
    for worker in followed(topology).results:
        assert worker[trial]["seen"] == of_keras(followed, trial)["seen"]


@pytest.mark.parametrize(("topology", "trial"), on_topologies(TRIALS, (*TOLD, "own", "averaged")))
def test_history_weights_and_rates_are_those_of_keras(followed, topology, trial):
    expected = of_keras(followed, trial)
    for worker in followed(topology).results:
        assert list(worker[trial]["history"]) == list(expected["history"])
        assert worker[trial]["epochs"] == expected["epochs"]
        for name, values in expected["history"].items():
            np.testing.assert_allclose(worker[trial]["history"][name], values, atol=1e-5, err_msg=name)
        assert worker[trial]["rate"] == expected["rate"]
        for mine, theirs in zip(worker[trial]["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.slow
def test_workers_that_disagree_end_together(followed):
    chief, other = followed("two workers, slow").results
    for worker in (chief, other):
        assert worker["writers"]["epochs"] == [0]
        assert worker["writers"]["seen"] == [["accuracy", "loss", "own", "parts", "val_accuracy", 0.25]]
    assert other["writers"]["history"] == chief["writers"]["history"]


def test_callbacks_that_differ_between_workers_are_named(followed):
    for worker in followed("two workers").results:
        lists, states = worker["differing"]["raised"]
        assert "['History', 'Follower, History']" in lists
        assert "optimizer/" in states and "learning_rate" in states


@pytest.mark.slow
def test_the_chief_alone_writes_files(followed):
    directory = followed("two workers, slow").directory
    assert sorted(path.name for path in directory.glob("rank*")) == ["rank0"]
    names = {path.name for path in (directory / "rank0").iterdir()}
    assert names == {"best.keras", "tensorboard", "batch1-3.weights.h5"}  # Every third batch is saved.
    loaded = keras.models.load_model(directory / "rank0" / "best.keras")
    assert loaded.count_params() == 58
    assert list((directory / "rank0" / "tensorboard").rglob("*tfevents*"))
    lines = (directory / "log.csv").read_text().splitlines()
    assert lines[0] == "epoch,accuracy,loss,val_accuracy,val_loss" and len(lines) == 2


@pytest.mark.parametrize(("topology", "trial"), on_topologies(TRIALS, ["own"]))
def test_callbacks_written_for_one_process_write_once(followed, topology, trial):
    keras_own, ours = followed("keras"), followed(topology)
    np.testing.assert_allclose(ours.results[0][trial]["rows"], of_keras(followed, trial)["rows"], atol=1e-5)
    for worker in ours.results:
        np.testing.assert_allclose(worker[trial]["predicted"], of_keras(followed, trial)["predicted"], atol=1e-5)
    places = [one.directory / "own" for one in (ours, keras_own)]
    lines = [(place / "rows.csv").read_text().splitlines() for place in places]
    assert lines[0][0] == "epoch,loss" and [len(one) for one in lines] == [4, 4]
    files = [sorted(path.name for path in place.iterdir()) for place in places]
    assert files[0] == files[1] and len(files[0]) == 4


def test_collectives_are_refused_on_one_worker_alone(followed):
    chief, other = (worker["own"]["refused"] for worker in followed("two workers").results)
    assert len(chief) == 9 and len(other) == 3
    for name, message in zip(("tfdist.evaluate", "model.evaluate"), chief[:2], strict=True):
        assert re.match(rf"LambdaCallback\.on_epoch_end .*{name} .*on_all_workers = True", message), message
    assert "model.evaluate is Keras' own" in other[0] and chief[2] == other[0]


@pytest.mark.slow
def test_callbacks_go_on_after_a_crash_as_if_nothing_had_happened(followed):
    for rank, worker in enumerate(followed("two workers, slow").results):
        found = worker["resumed"]
        assert found["crashed by"] == "Crash()"
        # Resumed from the end of an epoch, with another start's callbacks: to the bit, but for nothing.
        assert found["crashed"] == found["whole"]
        assert len(found["whole"]["epochs"]) < 9 and len(set(found["whole"]["history"]["learning_rate"])) > 1
        assert ("log" in found["whole"]) == (rank == 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "trial", "end"),
    [
        ("one device, slow", "resumed", "stopped"),
        ("two devices, slow", "resumed", "stopped"),
        ("two devices, slow", "resumed_after_kill", "killed"),
    ],
)
def test_callbacks_resume_in_the_middle_of_an_epoch(followed, topology, trial, end):
    (worker,) = followed(topology).results
    assert worker[trial][end] == worker[trial]["whole"]
    assert end == "killed" or worker[trial]["stopped by"] == "SystemExit(75)"


@pytest.mark.parametrize(("topology", "trial"), on_topologies(TRIALS, ["averaged"]))
def test_swapped_averages_go_on_after_a_crash(followed, topology, trial):
    for worker in followed(topology).results:
        found = dict(worker[trial])
        assert found.pop("again") == found


def shown(text: str) -> list[str]:
    """The lines of a terminal as they look in the end, without times, and without those that a warning cut short."""
    lines = re.sub(r"\x1b\[[0-9;]*[mK]", "", text.replace("\x08", "")).split("\n")
    last = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
    last = [re.sub(r"\d+s \d+[mu]?s/step", "TIME", line) for line in last]
    # Lines of the bar hold only its numbers; a line with a warning is not a bar.
    return [
        line for line in last if re.match(r"Epoch \d", line) or re.fullmatch(r"4/4 ━+ TIME( - \w+: [\d.e+-]+)+", line)
    ]


def assert_alike(line: str, expected: str) -> None:
    """Asserts that two lines differ in the last digits of their numbers at most."""
    number = r"\d+\.\d+(?:e[+-]\d+)?"
    assert re.sub(number, "N", line) == re.sub(number, "N", expected)
    values = [[float(value) for value in re.findall(number, text)] for text in (line, expected)]
    np.testing.assert_allclose(*values, atol=2e-4)


@pytest.mark.slow
def test_a_terminal_shows_what_keras_shows(followed):
    expected, lines = (shown(followed(name).printed[0]) for name in ("keras", "two devices, slow"))
    assert len(lines) == len(expected) == 6 and lines[::2] == ["Epoch 1/3", "Epoch 2/3", "Epoch 3/3"]
    assert "━ TIME - accuracy: 0." in lines[1]
    for line, theirs in zip(lines, expected, strict=True):
        assert_alike(line, theirs)


def test_a_log_file_has_a_line_an_epoch_of_the_chief_alone(followed):
    chief, other = (re.findall(r"^Epoch.*\n.*$", text, re.MULTILINE) for text in followed("two workers").printed)
    assert len(chief) == 3 and other == []
    for number, (line, theirs) in enumerate(
        zip(chief, shown(followed("keras").printed[0])[1::2], strict=True), start=1
    ):
        head, dash, rest = line.partition(" - accuracy")
        assert re.fullmatch(rf"Epoch {number}/3\n4/4 - \d+s - \d+[mu]?s/step", head), line
        assert_alike(dash + rest, "".join(theirs.partition(" - accuracy")[1:]))


@pytest.fixture(scope="module")
def cluster():
    return tfdist.connect()


def compiled(steps_per_execution: int = 1):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    return model


def wanted(cluster, *given):
    return callbacks.make_callbacks(cluster, compiled(), list(given), verbose=0).batch_interval


class Overriding(keras.callbacks.Callback):
    def on_batch_end(self, batch, logs=None):
        pass


class Busy(keras.callbacks.TerminateOnNaN):
    def on_train_batch_begin(self, batch, logs=None):
        pass


def test_steps_run_one_at_a_time_only_where_a_callback_wants_to_see_them(cluster, tmp_path):
    kept = keras.callbacks
    idle = [kept.TerminateOnNaN(), kept.TensorBoard(tmp_path), kept.ModelCheckpoint(tmp_path / "x.keras")]
    idle += [kept.EarlyStopping(), kept.LambdaCallback(on_epoch_end=print), kept.CSVLogger(tmp_path / "x.csv")]
    assert wanted(cluster, *idle) == {}
    assert wanted(cluster, kept.ModelCheckpoint(tmp_path / "x.keras", save_freq=3)) == {"train": 1}
    assert wanted(cluster, kept.TensorBoard(tmp_path, update_freq="batch")) == {"train": 1, "test": 1}
    assert wanted(cluster, kept.LambdaCallback(on_train_batch_end=print)) == {"train": 1}
    assert wanted(cluster, kept.LambdaCallback(on_predict_batch_begin=print)) == {"predict": 1}
    assert wanted(cluster, Overriding()) == {"train": 1}
    assert wanted(cluster, Busy()) == {"train": 1}
    assert callbacks.make_callbacks(cluster, compiled(4), [Overriding()], verbose=0).batch_interval == {"train": 4}


class MakesItsLayers(keras.Model):
    """Has its layers when it sees data."""

    def build(self, shape):
        self.hidden, self.norm = keras.layers.Dense(8, "gelu"), keras.layers.LayerNormalization()
        self.batch_norm, self.last = keras.layers.BatchNormalization(), keras.layers.Dense(3, "gelu")
        super().build(shape)

    def call(self, inputs, training=None):
        return self.last(self.batch_norm(self.norm(self.hidden(inputs)), training=training))


def test_a_run_leaves_layers_as_they_were_and_what_a_callback_has_set(cluster):
    def end(_):
        model.last.activation = keras.activations.relu

    with cluster.scope():
        model = MakesItsLayers()
        model.compile("sgd", "mse")
    told = keras.callbacks.LambdaCallback(on_train_end=end)
    tfdist.fit(cluster, model, np.ones((8, 4)), np.ones((8, 3)), verbose=0, callbacks=[told])
    assert model.hidden.activation is keras.activations.gelu and model.last.activation is keras.activations.relu
    assert not [layer.name for layer in model.layers if "call" in vars(layer)]


class Fails(keras.callbacks.Callback):
    """Raises an error at the end of an epoch, before it is saved."""

    def __init__(self, epoch):
        super().__init__()
        self._fails_in = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self._fails_in:
            raise KeyError(epoch)


def of_a_start(cluster, make_optimizer):
    """A model with names of its own: Keras' count the objects of a process, and several starts share this one."""
    with cluster.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="only")], name="model")
        model.compile(make_optimizer(), "mse")
    model.set_weights([np.ones((2, 1)), np.zeros(1)])
    return model


@pytest.mark.slow
def test_fits_that_append_to_one_log_leave_each_row_once(cluster, tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss\n9,0.5\n")

    def script(*fails_in):
        model = of_a_start(cluster, lambda: keras.optimizers.SGD(name="sgd"))
        for index, epoch in enumerate(fails_in):
            fits = keras.callbacks.CSVLogger(tmp_path / "log.csv", append=True), Fails(epoch)
            options = {"callbacks": fits, "epochs": 2, "verbose": 0, "workdir": tmp_path / f"fit{index}"}
            tfdist.fit(cluster, model, np.ones((8, 2)), np.ones((8, 1)), **options)

    for fails_in in ((1,), (None, 1)):  # After the first checkpoint.
        with pytest.raises(KeyError):
            script(*fails_in)
    script(None, None)
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["epoch", "9", "0", "1", "0", "1"]
    script(None, None)  # All is finished.
    assert (tmp_path / "log.csv").read_text().splitlines() == rows


@pytest.mark.parametrize("save_freq", ["epoch", 3])
def test_backup_and_restore_names_the_directory_of_a_run_that_resumes(cluster, tmp_path, save_freq):
    """As with Keras, an interrupted training goes on, and the directory is removed when it has ended."""

    def script(fails_in):
        model = of_a_start(cluster, lambda: keras.optimizers.Adam(0.1, name="adam"))
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=save_freq)
        tfdist.fit(cluster, model, x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=[backup, Fails(fails_in)])
        return model.get_weights()

    x = np.random.default_rng(0).normal(size=(32, 2))
    whole = script(None)
    with pytest.raises(KeyError):
        script(1)
    assert len(list(tmp_path.glob("backup/checkpoints/step-*"))) == (1 if save_freq == "epoch" else 2)
    np.testing.assert_equal(script(None), whole)
    assert not (tmp_path / "backup").exists()


def test_objects_that_are_no_callbacks_are_refused(cluster):
    with pytest.raises(ValueError, match=r"callbacks must be instances of keras\.callbacks\.Callback.*Received: 3"):
        callbacks.make_callbacks(cluster, compiled(), [keras.callbacks.History(), 3], verbose=0)
    with pytest.raises(ValueError, match=r'verbose must be 0, 1, 2 or "auto"\. Received: 3'):
        callbacks.make_callbacks(cluster, compiled(), [], verbose=3)


MODULES = tf.Variable(0)


class Weighted(keras.losses.MeanSquaredError):
    def __init__(self):
        super().__init__()
        self.weight = keras.Variable(1.0)


def test_variables_that_callbacks_hold_are_found():
    weighted = Weighted()
    held, nested = [tf.Variable(float(index)) for index in range(2)], keras.Variable(1.0)

    class Holding(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.mine, self.nested, self.other, self.loss = held[0], {"a": [nested, held[0]]}, [3], weighted
            self.other.append(self.other)

        def on_epoch_end(self, epoch, logs=None):
            MODULES.assign_add(1)

    setting = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: held[1].assign(2.0))
    model = compiled()
    model.layers[0].scale = tf.Variable(1.0)
    # As in a model that overrides `metrics`: a sum over replicas, which the chief cannot read alone.
    sums = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": tf.VariableAggregation.SUM}
    model.layers[0].total = tf.Variable(0.0, trainable=False, **sums)
    found = callback_state.CallbackState([Holding(), setting, keras.callbacks.EarlyStopping()], model).variables
    mine = (*model.variables, *model.metrics_variables)
    found = [one for one in found.values() if all(one is not variable for variable in mine)]
    expected = {id(one) for one in (*held, nested, weighted.weight, MODULES, model.layers[0].scale)}
    assert len(found) == 6 and {id(one) for one in found} == expected


def config(*specs, **changes):
    parts = {
        "data": data(batch_size=256),
        "learning_rate": c.LearningRate(peak=0.01, schedule={"target": "tfdist.zoo.schedules:settable"}),
        "train": c.Train(epochs=6),
    }
    return small_runs.config(callbacks=list(specs), **parts | changes)


def spec(name, **arguments):
    return {"target": f"keras.callbacks:{name}", **arguments}


def test_a_config_names_callbacks_whose_end_is_the_runs(tmp_path, capsys):
    log = spec("CSVLogger", filename=str(tmp_path / "log.csv"))
    stop = spec("EarlyStopping", monitor="val_accuracy", mode="min", patience=2)
    plateau = spec("ReduceLROnPlateau", monitor="loss", min_delta=100.0, patience=1, factor=0.5)
    watched = config(plateau, stop, log)
    keras.utils.clear_session()
    assert loop.train(setup.build_run(watched, tmp_path / "run")) == 0
    finished = json.loads((tmp_path / "run" / "finished.json").read_text())
    # 1,437 digits are 5 steps an epoch; the third is the second without an improvement.
    assert finished == {"step": 15, "stopped_by_callback": True}
    said = "after step 15 of 30: EarlyStopping"
    assert said in capsys.readouterr().out and said in (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "epoch,accuracy,learning_rate,loss,val_accuracy,val_loss" and len(rows) == 4
    rates = [float(row.split(",")[2]) for row in rows[1:]]
    np.testing.assert_allclose(rates, [0.01, 0.01, 0.005], rtol=1e-6)
    assert keras.models.load_model(tmp_path / "run" / "model.keras").count_params() == 650
    keras.utils.clear_session()
    capsys.readouterr()
    assert loop.train(setup.build_run(watched, tmp_path / "run")) == 0
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_keras_callback_for_tensorboard_shows_histograms_and_graph_of_a_config(tmp_path, num_workers):
    workdir = tmp_path / "run"
    board = spec("TensorBoard", log_dir=f"{workdir}/tensorboard/keras", histogram_freq=1, update_freq="batch")
    options = ("--config.train.steps=none", "--config.train.epochs=2", "--config.evaluation.every.epochs=1")
    command = train_command(workdir, *options, f"--config.callbacks=[{board}]")
    if num_workers > 1:
        command = [sys.executable, "-m", "tfdist.launch", f"--workers={num_workers}", "--", *command[3:]]
    run_all([command], [worker_environment()])
    files = [*(workdir / "tensorboard" / "keras").rglob("*tfevents*")]
    assert sorted(path.parent.name for path in files) == ["train", "validation"]  # Of the chief alone.
    shown = EventAccumulator(str(workdir / "tensorboard" / "keras" / "train"), size_guidance={"tensors": 0}).Reload()
    tags = {tag: [event.step for event in shown.Tensors(tag)] for tag in shown.Tags()["tensors"]}
    assert tags["logits/kernel/histogram"] == tags["logits/bias/histogram"] == tags["epoch_loss"] == [0, 1]
    assert tags["batch_loss"] == [*range(1, 45)]
    (graph,) = shown.Tensors("keras")
    layers = json.loads(graph.tensor_proto.string_val[0])["config"]["layers"]
    assert "logits" in [layer["config"]["name"] for layer in layers]


@pytest.mark.slow
def test_epochs_are_counted_anew_if_a_run_resumes_with_another_batch_size(tmp_path):
    log = spec("CSVLogger", filename=str(tmp_path / "log.csv"))
    for epochs, batch_size in ((2, 256), (4, 128)):
        small_runs.train(
            tmp_path / "run", data=data(batch_size=batch_size), train=c.Train(epochs=epochs), callbacks=[log]
        )
    rows = (tmp_path / "log.csv").read_text().splitlines()[1:]
    # Two epochs of 5 steps; then 11 steps are an epoch, so the first one continues.
    assert [row.split(",")[0] for row in rows] == ["0", "1", "0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("bad", "changes", "message"),
    [
        (spec("EarlyStopping", patiense=3), {}, r"config\.callbacks\[0\]\.patiense: .* Did you mean 'patience'\?"),
        ({"target": "lab:not_a_model"}, {}, r"config\.callbacks\[0\]\.target must return a keras.* Received: str"),
        (spec("BackupAndRestore", backup_dir="x"), {}, r"config\.callbacks\[0\]: BackupAndRestore is not needed"),
        (spec("EarlyStopping", monitor="val_acc"), {}, r"config\.callbacks\[0\]\.monitor='val_acc' .*Choose one of"),
        (spec("EarlyStopping", monitor="accuracy"), {}, r"config\.callbacks\[0\]: set mode=\"max\" or mode=\"min\""),
        (
            spec("ReduceLROnPlateau"),
            {"learning_rate": c.LearningRate(peak=0.01)},
            r"config\.callbacks\[0\]: ReduceLROnPlateau .*settable",
        ),
    ],
)
def test_callbacks_of_a_config_that_cannot_work_say_why(tmp_path, bad, changes, message):
    keras.utils.clear_session()
    with pytest.raises(ValueError, match=message):
        setup.build_run(config(bad, **changes), tmp_path / "run")
