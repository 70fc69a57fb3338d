"""What callbacks remember comes back from a checkpoint as it was: numbers, texts, arrays, lists and dicts."""

import collections
import random
import threading

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.training.features import callback_state

LARGE = np.zeros(2**18)


class Counter:
    """An object that a checkpoint cannot hold."""


class Kept(keras.callbacks.Callback):
    """Has functions for its state, and for that of an attribute."""

    def __init__(self):
        super().__init__()
        self.lock, self.seen = threading.Lock(), 0

    def learn(self):
        self.seen = 3

    def get_state(self):
        return {"seen": self.seen, "sums": np.full(2, self.seen)}

    def set_state(self, state):
        self.seen, self.sums = state["seen"], state["sums"]


class Notes(keras.callbacks.Callback):
    """Holds some settings, data that it only looks at, objects of the script, and what it learns."""

    def __init__(self, patience: int = 3, losses=(), by_epoch=None):
        super().__init__()
        self.patience, self.data, self.lock = patience, LARGE, threading.Lock()
        self.losses, self.by_epoch = losses, by_epoch
        self.seen, self.window = collections.defaultdict(list), collections.deque([1], 2)
        self.mean, self.counter = np.zeros(3), Counter()
        # As of FITS, netCDF and IDX files; and an array that is more than its numbers.
        self.big, self.masked = np.zeros(3, ">i4"), np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 0])

    def learn(self):
        self.wait, self.name, self.ready, self.best = 2, "epoch 3", True, float("inf")
        tensors = [np.arange(3), tf.constant([1.5, 2.5]), tf.constant(3)]
        self.values = [1, (2.5, None, "x"), {"a": np.float32(0.1), 7: tensors}]
        self.half = np.ones(2, ml_dtypes.bfloat16)
        self.seen["loss"].append(0.25)
        self.losses.append(0.5)
        self.by_epoch[0] = 0.5
        self.mean += 1.0
        self.window.extend([3, 4])
        self.big[:] = [1, 2, 3]
        self.masked[1] = np.ma.masked


def begun(callbacks):
    """The state of callbacks as `on_train_begin` left them."""
    state = callback_state.CallbackState(callbacks, keras.Model())
    state.begin()
    return state


def resume(directory, first, change, second):
    """Saves callbacks after `change()`, and restores others; returns what was saved, and what was not."""
    before = begun(first)
    change()
    state, arrays, lost = before.save(set())
    assert all(array.dtype.isnative for array in arrays.values())
    saved = checkpoint_format.verify(checkpoint_format.write(directory, 4, arrays, {"callbacks": state}))
    arrays = dict(checkpoint_format.read(saved, checkpoint_format.callback_names(saved)))
    missing = begun(second).restore(saved.state["callbacks"], arrays)
    assert missing == ["History"] * (len(second) - len(first))
    return state, lost


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Callbacks before and after an interruption, what was saved, and what was named; the first one learned nothing."""
    first = [Notes(), Notes(losses=[], by_epoch={}), Kept()]
    second = [Notes(patience=9), Notes(patience=9, losses=[], by_epoch={}), Kept()]
    shared = second[1].losses, second[1].by_epoch

    def learn():
        for callback in first[1:]:
            callback.learn()

    state, lost = resume(tmp_path_factory.mktemp("run"), first, learn, [*second, keras.callbacks.History()])
    assert second[1].losses is shared[0] and second[1].by_epoch is shared[1]  # The script sees them, too.
    return first[1], second, state, lost


def test_learned_values_are_restored(resumed):
    learned, (untouched, restored, kept), _, _ = resumed
    assert not hasattr(untouched, "wait") and not untouched.seen
    assert (restored.wait, restored.name, restored.ready, restored.best) == (2, "epoch 3", True, float("inf"))
    assert type(restored.ready) is bool and restored.values[:2] == learned.values[:2]
    assert restored.values[2]["a"] == np.float32(0.1) and restored.values[2]["a"].dtype == np.float32
    assert [np.asarray(one).tolist() for one in restored.values[2][7]] == [[0, 1, 2], [1.5, 2.5], 3]
    assert restored.half.dtype == ml_dtypes.bfloat16 and restored.half.tolist() == [1.0, 1.0]
    assert restored.mean.tolist() == [1.0, 1.0, 1.0] and restored.big.tolist() == [1, 2, 3]
    assert (restored.losses, restored.by_epoch) == ([0.5], {0: 0.5})
    assert list(restored.window) == [3, 4] and restored.window.maxlen == 2
    assert (kept.seen, kept.sums.tolist()) == (3, [3, 3])
    restored.seen["accuracy"].append(1)  # A dict with a default keeps it.
    assert restored.seen == {"loss": [0.25], "accuracy": [1]}


def test_settings_and_data_that_are_only_held_are_not_kept_and_what_cannot_be_saved_is_named(resumed):
    _, (_, restored, _), state, lost = resumed
    assert restored.patience == 9 and restored.data is LARGE
    assert state["Notes"]["attributes"] == {} and not {"patience", "data", "lock"} & set(state["Notes#2"]["attributes"])
    names = ("lock (lock)", "counter (Counter)", "masked (MaskedArray)")
    assert lost == [f"Notes{number}.{name}" for number in ("", "#2") for name in names]


@pytest.mark.parametrize("make", [lambda: random.Random(3), lambda: np.random.default_rng(3)])
def test_random_generators_of_callbacks_go_on_where_they_were(tmp_path, make):
    def draws(callback):
        return [callback.random.choice([1, 2, 3, 4, 5, 6, 7, 8]) for _ in range(20)]

    callback, resumed = Notes(), Notes()
    callback.random, resumed.random = make(), make()
    resume(tmp_path, [callback], lambda: draws(callback), [resumed])
    assert draws(resumed) == draws(callback) != draws(callback)
