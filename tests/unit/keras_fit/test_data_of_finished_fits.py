"""A script that is started again: data and random numbers are where its finished trainings have left them."""

import contextlib
import os
import random
import runpy
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

import tfdist
from tfdist.keras_fit.script import entropy, model_methods, script_state

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Shuffled(keras.utils.PyDataset):
    """Draws an order by NumPy's global generator at the end of each epoch, as generators of images do."""

    def __init__(self):
        super().__init__()
        self.order = np.arange(12)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = self.order[4 * index : 4 * index + 4]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def drawn():
    generator = np.random.default_rng(0)
    while True:
        rows = generator.integers(0, 12, 4)
        yield X[rows], Y[rows]


class Ends(keras.callbacks.Callback):
    """Ends a fit: in mid-epoch by a signal, as a job system does, or by an error after an epoch that is not saved."""

    def __init__(self, how):
        super().__init__()
        self._how, self.steps = how, 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self._how == "signal" and self.steps == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        if self._how == "error" and epoch == 2:
            raise KeyError(epoch)


@pytest.fixture(scope="module")
def cluster():
    return tfdist.connect()


def model_of_zeros(cluster):
    with cluster.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="only")], name="model")
        model.compile(keras.optimizers.SGD(0.01, name="sgd"), "mse")
    model.set_weights([np.zeros((3, 1)), np.zeros(1)])
    return model


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def noisy():
    """Rows of Python code that draws from a state."""
    rng = np.random.default_rng(0)

    def draw(x):
        return x + rng.normal(size=x.shape).astype("float32")

    return rows().map(lambda x, y: (tf.ensure_shape(tf.numpy_function(draw, [x], tf.float32), [3]), y)).batch(4)


def shuffled():
    return rows().shuffle(12, seed=1).batch(4)


# Kind of data -> how a fit ends, the number of fits, and what makes the data and options of all of them.
MADE = {
    "PyDataset": ("error", 2, lambda: ((Shuffled(),), {})),
    "only the validation": ("error", 2, lambda: ((X, Y), {"validation_data": Shuffled(), "validation_freq": 2})),
    "generator": ("error", 2, lambda: ((drawn(),), {"steps_per_epoch": 3})),
    "generator in mid-epoch": ("signal", 1, lambda: ((drawn(),), {"steps_per_epoch": 3})),
    "shuffle": ("signal", 1, lambda: ((shuffled(),), {"validation_data": shuffled()})),
    "code": ("signal", 1, lambda: ((noisy(),), {})),
}


@pytest.mark.parametrize("kind", slow_except(MADE, ["shuffle"]))
def test_a_script_that_is_started_again_reads_the_same_data(cluster, tmp_path, kind):
    how, fits, make = MADE[kind]

    def script(place, ends_in=None):
        np.random.seed(0)
        model, (data, options), histories = model_of_zeros(cluster), make(), []
        for index in range(fits):
            more = {"callbacks": [Ends(how if index == ends_in else "")], "workdir": tmp_path / place / f"fit{index}"}
            histories.append(tfdist.fit(cluster, model, *data, epochs=3, verbose=0, **options, **more).history)
        return [one.tolist() for one in model.get_weights()], histories, np.random.rand()

    whole = script("whole")
    for ends_in in range(fits):
        with pytest.raises((KeyError, SystemExit)):
            script("ended", ends_in)
    assert script("ended") == whole
    assert script("ended") == whole  # All is finished.


class Draws(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.drawn = np.random.default_rng().random(), np.random.normal(), random.random()


@contextlib.contextmanager
def script_of(cluster, workdir):
    """In the block, this process is that of a script under tfdist.run."""
    with (
        model_methods.distribute_methods(cluster, workdir),
        entropy.share_seed(cluster, workdir) as seed,
        script_state.script_runs(cluster, seed),
    ):
        yield


def test_a_script_draws_the_same_after_a_fit_that_is_finished(cluster, tmp_path):
    def script():
        with script_of(cluster, tmp_path):
            model = model_of_zeros(cluster)
            for _ in range(2):
                callback = Draws()
                model.fit(X, Y, epochs=2, verbose=0, callbacks=[callback])
                yield callback.drawn
            yield np.random.default_rng().random(), np.random.RandomState().rand(), np.random.normal(), random.random()

    whole = [*script()]
    assert whole[0] != whole[1]
    assert [*script()] == whole


FITS = """
for _ in range(calls):
    model.fit(x, y, verbose=0)
if not again:
    model.fit(x, y, verbose=0)
model.fit(x, y, verbose=0)
"""


@pytest.mark.slow
def test_calls_of_fit_that_a_later_start_skips_are_reported(cluster, tmp_path, capsys):
    (tmp_path / "train.py").write_text(FITS)

    def start(**given):
        with script_of(cluster, tmp_path):
            runpy.run_path(f"{tmp_path}/train.py", {"model": model_of_zeros(cluster), "x": X, "y": Y, **given})

    start(calls=1, again=False)
    (tmp_path / "train.py").write_text(f"# A comment.\n{FITS.replace('verbose=0', 'verbose=0, epochs=1')}")
    start(calls=1, again=False)
    assert "not reached" not in capsys.readouterr().err
    with pytest.raises(ValueError, match="call: 'call 2 of fit in <module>' was saved, now 'call 3 of fit in <mod"):
        start(calls=1, again=True)
    (tmp_path / "train.py").write_text(FITS.partition("if")[0])
    start(calls=1)
    assert f"fewer calls of fit than before: {tmp_path}/fit2 was not reached" in capsys.readouterr().err


def test_a_damaged_file_of_entropy_is_named(cluster, tmp_path):
    (tmp_path / "entropy").write_text("no digits")
    with pytest.raises(ValueError, match="entropy is damaged"), script_of(cluster, tmp_path):
        pass
