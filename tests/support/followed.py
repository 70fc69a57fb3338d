"""Trains a small model with callbacks that record their calls, under Keras' own fit or under tfdist.fit."""

import contextlib
import csv
import functools
import os
import pathlib
import signal

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import config as config_lib

rng = np.random.default_rng(0)
# 100 examples in batches of 32: the last batch of an epoch has 4.
X = rng.random((100, 4)).astype(np.float32)
Y = (X.sum(axis=1) > 2).astype(np.int64)
MOMENTS = ["train_begin", "train_end", "epoch_begin", "epoch_end", "test_begin", "test_end"]
BATCHES = ["train_batch_begin", "train_batch_end", "test_batch_begin", "test_batch_end"]
PREDICTIONS = ["predict_begin", "predict_end", "predict_batch_begin", "predict_batch_end"]


def recorder(*moments: str) -> keras.callbacks.Callback:
    """Records the hooks that are called, each with its index and the keys of its logs."""
    seen = []

    def note(moment, *arguments, logs=None):
        index = [argument for argument in arguments if isinstance(argument, int)]
        given = next((argument for argument in arguments if isinstance(argument, dict)), logs)
        seen.append([moment, *index, list(given or {})])

    noting = {f"on_{moment}": functools.partial(note, moment) for moment in moments}
    callback = keras.callbacks.LambdaCallback(**noting)
    callback.seen = seen
    return callback


class Crash(Exception):
    """Raised to interrupt a training that is resumed later."""


class Follower(keras.callbacks.Callback):
    """Computes its own mean of the losses, and may crash or request a stop."""

    def __init__(self, crash_after: int | None = None, stop_at: tuple[int, int] | None = None):
        super().__init__()
        self.crash_after, self.stop_at, self.mean, self.epoch = crash_after, stop_at, 0.0, None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.mean = 0.5 * self.mean + 0.5 * logs["loss"]
        logs["mean"] = self.mean
        if epoch == self.crash_after:
            raise Crash


class Interrupter(Follower):
    """Sends a stop signal after a batch."""

    signal = signal.SIGTERM

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.stop_at:
            os.kill(os.getpid(), self.signal)


class Killer(Interrupter):
    """Kills the process after a batch."""

    signal = signal.SIGKILL


class Disagreeing(keras.callbacks.Callback):
    """Stops training on the last worker after an epoch, on the others after two, as clocks may decide."""

    def __init__(self, last: bool):
        super().__init__()
        self.last = last

    def on_epoch_end(self, epoch, logs=None):
        if epoch == (0 if self.last else 1):
            self.model.stop_training = True


class Differing(keras.callbacks.Callback):
    """Sets another learning rate on each worker."""

    def __init__(self, rank: int):
        super().__init__()
        self.rank = rank

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.5 / (1 + self.rank)


class Writer(keras.callbacks.Callback):
    """Written for one process: creates new files, and calls Keras' own methods of the model."""

    on_all_workers = False

    def __init__(self, folder: pathlib.Path):
        super().__init__()
        self.folder, self.rows = folder, []

    def on_train_begin(self, logs=None):
        self.folder.mkdir()
        with open(self.folder / "rows.csv", "x") as file:
            file.write("epoch,loss\n")

    def on_epoch_end(self, epoch, logs=None):
        predicted = self.model.predict(X, verbose=0, batch_size=32)
        self.rows.append([len(predicted), float(predicted[-1, 0])])
        with open(self.folder / "rows.csv", "a") as file:
            file.write(f"{epoch},{logs['loss']}\n")
        self.model.save_weights(self.folder / f"{epoch}.weights.h5")


class Changer(keras.callbacks.Callback):
    """Sets weights, the learning rate, a variable of the loss, and the stop flag."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.optimizer.learning_rate = 0.125
            self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])
        self.scale.assign(1.0 + epoch)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            kernel = self.model.weights[0]
            kernel.assign(keras.ops.clip(kernel, -0.25, 0.25))

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 2


class Annealing(keras.callbacks.Callback):
    """Lowers a variable of the loss that the model refers to, and that Keras does not track."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.scale.assign(0.9 * self.model.scale)


class Trials:
    """The trainings; each returns JSON values."""

    def __init__(self, how: str, devices: int, directory: pathlib.Path):
        self.directory, self.cluster, self.rank, self.last_rank = directory, None, 0, 0
        self.methods = {"fit": keras.Model.fit, "evaluate": keras.Model.evaluate, "predict": keras.Model.predict}
        if how == "tfdist":
            self.cluster = tfdist.connect(config_lib.ClusterOptions(logical_devices=devices, connect_seconds=120.0))
            self.rank, self.last_rank = self.cluster.rank, self.cluster.num_workers - 1
            self.methods = {name: functools.partial(getattr(tfdist, name), self.cluster) for name in self.methods}

    def model(
        self, steps_per_execution: int = 1, loss="sparse_categorical_crossentropy", use_ema=False, dropout=0.0, seed=0
    ) -> keras.Model:
        keras.utils.clear_session()  # Layer names of each start count from 0.
        keras.utils.set_random_seed(seed)

        def make():
            layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2, activation="softmax")]
            layers[1:1] = [keras.layers.Dropout(dropout)] if dropout else []
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile(
                keras.optimizers.SGD(0.5, use_ema=use_ema, ema_momentum=0.8),
                loss,
                metrics=["accuracy"],
                steps_per_execution=steps_per_execution,
            )
            return model

        if self.cluster is None:
            return make()
        with self.cluster.scope():
            return make()

    def fit(self, model: keras.Model, callbacks: list, epochs: int = 3, **more) -> dict:
        defaults = {"batch_size": 32, "shuffle": False, "validation_data": (X[:50], Y[:50]), "verbose": 0}
        history = self.methods["fit"](model, X, Y, epochs=epochs, callbacks=callbacks, **defaults | more)
        return {
            "history": history.history,
            "epochs": history.epoch,
            "weights": [weight.tolist() for weight in model.get_weights()],
            "rate": float(model.optimizer.learning_rate),
        }

    def epochs(self) -> dict:
        """Epoch hooks only, and the output."""
        watch = recorder(*MOMENTS)
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=10.0)
        return self.fit(self.model(), [watch, plateau], verbose="auto") | {"seen": watch.seen}

    def batches(self) -> dict:
        """Batch hooks, and a learning rate that is set within an epoch."""
        watch, model = recorder(*MOMENTS, *BATCHES), self.model()

        def lower(batch, logs):
            model.optimizer.learning_rate = 0.5 / (1 + batch)

        return self.fit(model, [watch, keras.callbacks.LambdaCallback(on_train_batch_begin=lower)], epochs=2) | {
            "seen": watch.seen
        }

    def executions(self) -> dict:
        """Batch hooks with several steps per execution, from the second of three epochs."""
        watch = recorder(*MOMENTS, *BATCHES)
        more = {"initial_epoch": 1, "validation_freq": 3}
        return self.fit(self.model(steps_per_execution=3), [watch], **more) | {"seen": watch.seen}

    def cut_short(self) -> dict:
        """Training stopped within an epoch."""
        watch, model = recorder(*MOMENTS, "train_batch_end"), self.model()

        def stop(batch, logs):
            model.stop_training = batch == 1

        return self.fit(model, [watch, keras.callbacks.LambdaCallback(on_train_batch_end=stop)]) | {"seen": watch.seen}

    def not_finite(self) -> dict:
        """A NaN loss."""
        y, watch, model = keras.utils.to_categorical(Y), recorder(*MOMENTS), self.model()
        y[40] = np.nan
        with contextlib.nullcontext() if self.cluster is None else self.cluster.scope():
            model.compile("sgd", "mse")
        callbacks = [watch, keras.callbacks.TerminateOnNaN()]
        defaults = {"batch_size": 32, "shuffle": False, "verbose": 0, "epochs": 3}
        self.methods["fit"](model, X, y, callbacks=callbacks, **defaults)
        return {"seen": watch.seen}

    def others(self) -> dict:
        """Evaluation and prediction."""
        watch, model = recorder(*BATCHES, *MOMENTS, *PREDICTIONS), self.model()
        self.methods["evaluate"](model, X, Y, batch_size=32, verbose=0, callbacks=[watch])
        self.methods["predict"](model, X, batch_size=32, verbose=0, callbacks=[watch])
        return {"seen": watch.seen}

    def writers(self) -> dict:
        """Keras' callbacks that write files, one folder per worker, and a callback that differs between workers."""
        mine = self.directory / f"rank{self.rank}"
        seen, kept = [], keras.callbacks

        def change(epoch, logs):
            logs.update(own=epoch + 0.25, parts=np.array([epoch, 0.5], np.float32))
            del logs["val_loss"]

        reading = kept.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append([*sorted(logs), logs["own"]]))
        found = self.fit(
            self.model(),
            [
                Disagreeing(self.rank == self.last_rank),
                kept.ModelCheckpoint(mine / "best.keras", monitor="val_accuracy", save_best_only=True),
                kept.ModelCheckpoint(mine / "batch{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=3),
                kept.CSVLogger(self.directory / "log.csv") if self.rank == 0 else kept.CSVLogger(mine / "log.csv"),
                kept.TensorBoard(mine / "tensorboard"),
                kept.LambdaCallback(on_epoch_end=change),
                reading,
            ],
        )
        found["history"]["parts"] = np.asarray(found["history"]["parts"]).tolist()
        return found | {"seen": seen}

    def differing(self) -> dict:
        """A callback that differs between workers, and a list of callbacks that does."""
        raised = []
        for given in ([Follower()] if self.rank else [], [Differing(self.rank)]):
            try:
                self.fit(self.model(), given, epochs=2, validation_data=None)
            except (ValueError, ArithmeticError) as error:
                raised.append(str(error))
        return {"raised": raised}

    def own(self) -> dict:
        """Callbacks of a user, written for one process."""
        scale = tf.Variable(1.0)
        model = self.model(loss=lambda y, output: scale * keras.losses.sparse_categorical_crossentropy(y, output))
        writer, refused, predicted = Writer(self.directory / "own"), [], []

        def needs_all(epoch, logs, methods=(self.methods["evaluate"], lambda model, *data: model.evaluate(*data))):
            for evaluate in methods if self.last_rank else ():
                try:
                    evaluate(model, X, Y)
                except RuntimeError as error:
                    refused.append(str(error))

        def predict(epoch, logs):
            predicted.append(float(model.predict(X[:9], verbose=0).sum()))
            needs_all(epoch, logs, [lambda model, *data: model.evaluate(*data)])

        asking = keras.callbacks.LambdaCallback(on_epoch_end=needs_all)
        asking.on_all_workers = False
        predicting = keras.callbacks.LambdaCallback(on_epoch_end=predict)
        found = self.fit(model, [writer, Changer(scale), asking, predicting], epochs=5)
        return found | {"rows": writer.rows, "refused": refused, "predicted": predicted}

    def averaged(self) -> dict:
        """Averaged weights, swapped in for evaluations; in one start, and in two."""

        def train(follower, **more):
            swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
            return self.fit(self.model(use_ema=True), [swap, follower], **more)

        found = train(Follower())
        if self.cluster:
            with contextlib.suppress(Crash):
                train(Follower(crash_after=1), workdir=self.directory / "averaged")
            found["again"] = train(Follower(), workdir=self.directory / "averaged")
        return found

    def resumed(self) -> dict:
        """An uninterrupted training, and one that crashes or is stopped, and is restarted."""
        if self.last_rank:  # Several workers would report each other as lost when they are stopped.
            return self.starts({"whole": [Follower()], "crashed": [Follower(crash_after=3), Follower()]})
        return self.starts({"whole": [Follower()], "stopped": [Interrupter(stop_at=(2, 1)), Interrupter()]})

    def resumed_after_kill(self) -> dict:
        """An uninterrupted training, and the second start of one that `killed` has begun."""
        return self.starts({"whole": [Follower()], "killed": [Killer()]})

    def starts(self, followers: dict[str, list[Follower]]) -> dict:
        """Starts each training once for each of its callbacks; returns what the last start of each has found."""
        found = {}
        for name, given in followers.items():
            for seed, follower in enumerate(given):
                try:
                    found[name] = self.remembering(name, follower, seed)
                except (Crash, SystemExit) as error:
                    found[f"{name} by"] = repr(error)
            if self.rank == 0:
                with open(self.directory / name / "log.csv") as file:
                    found[name]["log"] = list(csv.reader(file))
        return found

    def remembering(self, name: str, follower: Follower, seed: int = 0) -> dict:
        """One start of a training whose callbacks have state, with the script's `seed`."""
        folder, scale = self.directory / name, tf.Variable(1.0, name="scale")

        def loss(y, output):
            return scale * keras.losses.sparse_categorical_crossentropy(y, output)

        model = self.model(loss=loss, dropout=0.2, seed=seed)
        model.scale = scale
        callbacks = [
            follower,
            Annealing(),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=2, factor=0.5, min_delta=10.0),
            keras.callbacks.EarlyStopping("mean", mode="min", patience=5, restore_best_weights=True),
        ]
        if self.rank == 0:
            folder.mkdir(exist_ok=True)
            callbacks.append(keras.callbacks.CSVLogger(folder / "log.csv"))
        return self.fit(model, callbacks, epochs=9, workdir=folder / "run") | {"scale": float(scale)}

    def killed(self) -> None:
        """The first start of a training; `resumed_after_kill` continues it."""
        self.remembering("killed", Killer(stop_at=(4, 1)))


def run(how: str, devices: int, directory: pathlib.Path, *chosen: str) -> dict[str, dict]:
    """Runs the trials on this worker, with Keras' own fit ("keras") or with tfdist; returns the recorded values."""
    trials = Trials(how, devices, directory)
    return {name: getattr(trials, name)() for name in chosen}
