"""What callbacks remember comes back from a checkpoint as it was: numbers, texts, arrays, lists and dicts."""

import collections
import random
import threading
import types

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.checkpoint import restore
from tfdist.training.features import callback_state

ALONE = types.SimpleNamespace(num_workers=1, is_chief=True)
LARGE = np.zeros(2**18)


class Counter:
    """An object that a checkpoint cannot hold."""


class Kept(keras.callbacks.Callback):
    """Has functions for its state, and for that of an attribute."""

    def __init__(self):
        super().__init__()
        self.lock, self.seen = threading.Lock(), 0

    def get_state(self):
        return {"seen": self.seen, "sums": np.full(2, self.seen)}

    def set_state(self, state):
        self.seen, self.sums = state["seen"], state["sums"]


class Notes(keras.callbacks.Callback):
    """Holds some settings, data that it only looks at, and what it learns."""

    def __init__(self, patience: int = 3):
        super().__init__()
        self.patience, self.data, self.lock = patience, LARGE, threading.Lock()
        self.seen, self.window = collections.defaultdict(list), collections.deque([1], 2)
        self.mean, self.counter = np.zeros(3), Counter()

    def learn(self) -> "Notes":
        self.wait, self.name, self.ready, self.best = 2, "epoch 3", True, float("inf")
        tensors = [np.arange(3), tf.constant([1.5, 2.5]), tf.constant(3)]
        self.values = [1, (2.5, None, "x"), {"a": np.float32(0.1), 7: tensors}]
        self.half = np.ones(2, ml_dtypes.bfloat16)
        self.seen["loss"].append(0.25)
        self.mean += 1.0
        self.window.extend([3, 4])
        return self


def through_a_checkpoint(directory, state, arrays):
    """What a later start finds of `state` and `arrays`."""
    path = checkpoint_format.write(directory, 4, {"model/w": np.ones(2)} | arrays, {"callbacks": state})
    saved = checkpoint_format.verify(path)
    variable = tf.Variable([0.0, 0.0], dtype=tf.float64)
    restore.restore(ALONE, saved, {"model/w": variable})
    assert variable.numpy().tolist() == [1.0, 1.0]
    return saved.state["callbacks"], dict(checkpoint_format.read(saved, checkpoint_format.callback_names(saved)))


def begun(*callbacks):
    """The state of callbacks as `on_train_begin` left them."""
    state = callback_state.CallbackState([*callbacks], keras.Model())
    state.begin()
    return state


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Two callbacks before and after an interruption, what was saved, and what was named."""
    first = [Notes(), Notes(), Kept()]
    before = begun(*first)
    first[1].learn()
    first[2].seen = 3
    state, arrays, lost = before.save(set())
    second = [Notes(patience=9), Notes(patience=9), Kept()]
    found = through_a_checkpoint(tmp_path_factory.mktemp("run"), state, arrays)
    assert begun(*second, keras.callbacks.History()).restore(*found) == ["History"]
    return first[1], second, state, lost


def test_learned_values_are_restored(resumed):
    learned, (untouched, restored, kept), _, _ = resumed
    assert not hasattr(untouched, "wait") and not untouched.seen
    assert (restored.wait, restored.name, restored.ready, restored.best) == (2, "epoch 3", True, float("inf"))
    assert type(restored.ready) is bool and restored.values[:2] == learned.values[:2]
    assert restored.values[2]["a"] == np.float32(0.1) and restored.values[2]["a"].dtype == np.float32
    assert [np.asarray(one).tolist() for one in restored.values[2][7]] == [[0, 1, 2], [1.5, 2.5], 3]
    assert restored.half.dtype == ml_dtypes.bfloat16 and restored.half.tolist() == [1.0, 1.0]
    assert restored.mean.tolist() == [1.0, 1.0, 1.0]
    assert list(restored.window) == [3, 4] and restored.window.maxlen == 2
    assert (kept.seen, kept.sums.tolist()) == (3, [3, 3])
    restored.seen["accuracy"].append(1)  # A dict with a default keeps it.
    assert restored.seen == {"loss": [0.25], "accuracy": [1]}


def test_settings_and_data_that_are_only_held_are_not_kept_and_what_cannot_be_saved_is_named(resumed):
    _, (_, restored, _), state, lost = resumed
    assert restored.patience == 9 and restored.data is LARGE
    assert state["Notes"]["attributes"] == {} and not {"patience", "data", "lock"} & set(state["Notes#2"]["attributes"])
    assert lost == [f"Notes{number}.{name}" for number in ("", "#2") for name in ("lock (lock)", "counter (Counter)")]


@pytest.mark.parametrize("make", [lambda: random.Random(3), lambda: np.random.default_rng(3)])
def test_random_generators_of_callbacks_go_on_where_they_were(tmp_path, make):
    def draws(callback):
        return [callback.random.choice([1, 2, 3, 4, 5, 6, 7, 8]) for _ in range(20)]

    callback, resumed = Notes(), Notes()
    callback.random, resumed.random = make(), make()
    before = begun(callback)
    draws(callback)
    saved = through_a_checkpoint(tmp_path, *before.save(set())[:2])
    assert begun(resumed).restore(*saved) == []
    assert draws(resumed) == draws(callback) != draws(callback)


class Recorder(keras.callbacks.Callback):
    """Writes into objects of the script."""

    def __init__(self, losses, by_epoch, sums):
        super().__init__()
        self.losses, self.by_epoch, self.sums = losses, by_epoch, sums

    def note(self):
        self.losses.append(0.5)
        self.by_epoch[0] = 0.5
        self.sums += 1.0


def test_what_a_callback_shares_with_the_script_is_restored_for_both(tmp_path):
    def of_script():
        return [], {}, np.zeros(2)

    first, second = of_script(), of_script()
    callback, again = Recorder(*first), Recorder(*second)
    before = begun(callback)
    callback.note()
    assert begun(again).restore(*through_a_checkpoint(tmp_path, *before.save(set())[:2])) == []
    losses, by_epoch, sums = second
    assert (losses, by_epoch, sums.tolist()) == ([0.5], {0: 0.5}, [1.0, 1.0])
    assert again.losses is losses and again.by_epoch is by_epoch and again.sums is sums


class Fields(keras.callbacks.Callback):
    """Holds arrays in the byte order of FITS, netCDF and IDX files, and arrays that are more than their numbers."""

    def __init__(self):
        super().__init__()
        self.big, self.masked = np.zeros(3, ">i4"), np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 0])

    def note(self):
        self.big[:] = [1, 2, 3]
        self.masked[1] = np.ma.masked


def test_arrays_of_any_byte_order_are_restored_and_masked_ones_are_named(tmp_path):
    callback, again = Fields(), Fields()
    before = begun(callback)
    callback.note()
    state, arrays, lost = before.save(set())
    assert lost == ["Fields.masked (MaskedArray)"] and all(array.dtype.isnative for array in arrays.values())
    assert begun(again).restore(*through_a_checkpoint(tmp_path, state, arrays)) == [] and again.big.tolist() == [
        1,
        2,
        3,
    ]
