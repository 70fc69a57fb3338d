"""A script that is started again: data and random numbers are where its finished trainings have left them."""

import itertools
import random
import uuid

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tfdist.keras_fit.script import context, entropy, model_methods

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


class Fails(keras.callbacks.Callback):
    """Raises an error after an epoch that is not saved then."""

    def __init__(self, fails):
        super().__init__()
        self._fails = fails

    def on_epoch_end(self, epoch, logs=None):
        if self._fails and epoch == 2:
            raise KeyError(epoch)


@pytest.fixture(scope="module")
def cluster():
    return tfdist.connect()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["PyDataset", "validated PyDataset", "only the validation", "generator"])
def test_a_fit_after_a_finished_one_reads_the_same_data_again(cluster, tmp_path, kind):
    def script(place, fails_in=None):
        np.random.seed(0)
        with cluster.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="only")], name="model")
            model.compile(keras.optimizers.SGD(0.01, name="sgd"), "mse")
        model.set_weights([np.zeros((3, 1)), np.zeros(1)])
        data = drawn() if kind == "generator" else (X, Y) if kind == "only the validation" else Shuffled()
        parts = data if kind == "only the validation" else (data,)
        options = {"epochs": 3, "verbose": 0}
        options |= {"steps_per_epoch": 3} if kind == "generator" else {}
        if "valid" in kind:
            options |= {"validation_data": Shuffled(), "validation_freq": 2}
        histories = []
        for index in range(2):
            callbacks = [Fails(index == fails_in)]
            workdir = tmp_path / place / f"fit{index}"
            fitted = tfdist.fit(cluster, model, *parts, **options, callbacks=callbacks, workdir=workdir)
            histories.append(fitted.history)
        return [one.tolist() for one in model.get_weights()], histories, np.random.rand()

    whole = script("whole")
    for fails_in in (0, 1):
        with pytest.raises(KeyError):
            script("killed", fails_in)
    assert script("killed") == whole
    assert script("killed") == whole  # All is finished.


class Draws(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.drawn = np.random.default_rng().random(), np.random.normal(), random.random()


def test_a_script_draws_the_same_after_a_fit_that_is_finished(cluster, tmp_path):
    def script():
        with (
            model_methods.distribute_methods(cluster, tmp_path),
            entropy.share_entropy(cluster, tmp_path),
            context.script_runs(cluster),
        ):
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="only")], name="model")
            model.compile(keras.optimizers.SGD(0.01, name="sgd"), "mse")
            for _ in range(2):
                callback = Draws()
                model.fit(X, Y, epochs=2, verbose=0, callbacks=[callback])
                yield callback.drawn
            yield np.random.default_rng().random(), uuid.uuid4(), np.random.normal(), random.random()

    whole = [*script()]
    assert whole[0] != whole[1]
    assert [*script()] == whole


def test_passes_of_a_loop_are_those_of_the_shuffle_also_if_the_loop_leaves_one(cluster):
    data = [tf.data.Dataset.range(12).shuffle(12, seed=1).batch(3) for _ in range(2)]
    for steps in (2, 4, 2, 4):
        ours = [batch.element["data"][0] for batch in itertools.islice(tfdist.batches(data[0]), steps)]
        np.testing.assert_array_equal(ours, [*itertools.islice(data[1], steps)])
