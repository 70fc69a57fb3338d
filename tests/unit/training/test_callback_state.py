"""What callbacks remember comes back from a checkpoint as it was: numbers, texts, arrays, lists and dicts."""

import collections
import csv
import json
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
        self.patience, self.data, self.lock, self.seen = (
            patience,
            LARGE,
            threading.Lock(),
            collections.defaultdict(list),
        )
        self.mean, self.counter, self.window = np.zeros(3), Counter(), collections.deque([1], 2)

    def learn(self) -> "Notes":
        self.wait, self.name, self.ready, self.best = 2, "epoch 3", True, float("inf")
        self.values = [
            1,
            (2.5, None, "x"),
            {"a": np.float32(0.1), 7: [np.arange(3), tf.constant([1.5, 2.5]), tf.constant(3)]},
        ]
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
    assert restored.values[2][7][0].tolist() == [0, 1, 2] and restored.values[2][7][1].tolist() == [1.5, 2.5]
    assert restored.values[2][7][2] == 3
    assert restored.half.dtype == ml_dtypes.bfloat16 and restored.half.tolist() == [1.0, 1.0]
    assert restored.mean.tolist() == [1.0, 1.0, 1.0]
    assert list(restored.window) == [3, 4] and restored.window.maxlen == 2
    assert (kept.seen, kept.sums.tolist()) == (3, [3, 3])


def test_long_lists_of_numbers_are_saved_as_arrays_and_restored_as_lists(tmp_path):
    before, history = keras.callbacks.History(), keras.callbacks.History()
    before.on_train_begin()
    history.on_train_begin()
    initial = begun(history)
    losses = [1 / (1 + epoch) for epoch in range(20_000)]
    history.epoch = list(range(20_000))
    history.history = {
        "loss": losses,
        "nan": [float("nan"), -0.0] * 100,
        "large": [2**64] * 100,
        "mixed": [1, 0.5] * 50,
    }
    state, arrays, _ = initial.save(set())
    assert len(json.dumps(state)) < 5_000
    again = keras.callbacks.History()
    again.on_train_begin()
    assert begun(again).restore(*through_a_checkpoint(tmp_path, state, arrays)) == []
    assert again.epoch == history.epoch and type(again.epoch[0]) is int
    assert again.history["loss"] == losses and type(again.history["loss"]) is list
    assert repr(again.history) == repr(history.history)


def test_a_dict_with_a_default_keeps_it(resumed):
    _, (_, restored, _), _, _ = resumed
    restored.seen["accuracy"].append(1)
    assert restored.seen == {"loss": [0.25], "accuracy": [1]}


def test_settings_and_data_that_are_only_held_are_not_kept(resumed):
    _, (_, restored, _), state, _ = resumed
    assert restored.patience == 9 and restored.data is LARGE
    assert state["Notes"]["attributes"] == {} and not {"patience", "data", "lock"} & set(state["Notes#2"]["attributes"])


def test_attributes_that_cannot_be_saved_are_named(resumed):
    names = ("lock (lock)", "counter (Counter)")
    assert resumed[3] == [f"Notes{number}.{name}" for number in ("", "#2") for name in names]


class Data(list):
    """A list that is not looked at number by number."""

    def __iter__(self):
        for index, value in enumerate(super().__iter__()):
            assert index <= 100
            yield value


NUMBERS = Data([0.5] * 200)


def test_data_that_callbacks_hold_are_not_looked_at_number_by_number():
    """It took seconds at the start, and in the main thread at each checkpoint."""

    class Holds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.last = len(NUMBERS)

    callback, weight = Holds(), tf.Variable(1.0)
    callback.rows = [[float(i), 1] for i in range(100_000)]
    callback.records = {i: {"name": "x", "value": i} for i in range(100_001)}
    callback.held = {"rate": 0.1, "weights": ["w", weight]}
    before = begun(callback)
    assert any(one is weight for one in before.variables.values())
    callback.on_epoch_end(0)
    callback.held["rate"] = 0.2
    callback.held.pop("weights")
    state, _, lost = before.save(set())
    assert lost == ["Holds.records (dict)"] and set(state["Holds"]["attributes"]) == {"last", "held"}


def model():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse")
    return model


LOSSES = [3.0, 2.0, 2.5, 1.9, 1.95, 1.91, 1.92, 1.93]


def callbacks(directory):
    return [
        keras.callbacks.EarlyStopping("loss", patience=4, min_delta=0.05, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=2, cooldown=1, min_delta=0.05),
        keras.callbacks.ModelCheckpoint(
            directory / "{epoch}.weights.h5", "loss", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.CSVLogger(directory / "log.csv"),
        keras.callbacks.History(),
    ]


def epochs(listed, first, last):
    """Ends epochs as `fit` would, up to the one where a callback asks for the end; returns each one's rate."""
    rates = []
    for epoch in range(first, last):
        for callback in listed.callbacks:
            callback.model.set_weights([np.full((1, 1), float(epoch))])
        listed.on_epoch_end(epoch, {"loss": LOSSES[epoch]})
        rates.append(float(keras.ops.convert_to_numpy(listed.model.optimizer.learning_rate)))
        if listed.model.stop_training:
            break
    return rates


@pytest.mark.parametrize("interrupted", [1, 4, 6])
def test_keras_own_callbacks_decide_as_without_an_interruption(tmp_path, interrupted):
    whole = keras.callbacks.CallbackList(callbacks(tmp_path / "whole"), model=model(), epochs=8, steps=1, verbose=0)
    (tmp_path / "whole").mkdir()
    whole.on_train_begin()
    rates = epochs(whole, 0, 8)
    whole.on_train_end()

    (tmp_path / "parts").mkdir()
    net = model()
    first = keras.callbacks.CallbackList(callbacks(tmp_path / "parts"), model=net, epochs=8, steps=1, verbose=0)
    first.on_train_begin()
    before = begun(*first.callbacks)
    parts = epochs(first, 0, interrupted)
    state, arrays = through_a_checkpoint(tmp_path, *before.save(set())[:2])
    rate = parts[-1]
    epochs(first, interrupted, interrupted + 1)  # Done, and not saved: it is done again.
    second = callbacks(tmp_path / "parts")
    callback_state.rewind_files(second, state, ended=False)
    listed = keras.callbacks.CallbackList(second, model=net, epochs=8, steps=1, verbose=0)
    listed.on_train_begin()
    assert begun(*second).restore(state, arrays) == []
    net.optimizer.learning_rate, net.stop_training = rate, False
    parts += epochs(listed, interrupted, 8)
    listed.on_train_end()

    assert parts == rates and len(set(rates)) > 1 and len(rates) == 8
    assert second[-1].history == whole.callbacks[-1].history and second[-1].epoch == list(range(8))
    assert net.get_weights()[0] == whole.model.get_weights()[0] == 3.0  # Those of the best epoch, by EarlyStopping.
    written = [sorted(path.name for path in (tmp_path / name).glob("*.h5")) for name in ("whole", "parts")]
    assert written[0] == written[1] == ["1.weights.h5", "2.weights.h5", "4.weights.h5"]
    with open(tmp_path / "whole" / "log.csv") as one, open(tmp_path / "parts" / "log.csv") as other:
        assert list(csv.DictReader(one)) == list(csv.DictReader(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda: random.Random(3),
        lambda: np.random.RandomState(3),
        lambda: np.random.default_rng(3),
        lambda: np.random.Generator(np.random.MT19937(3)),
    ],
)
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
    """Writes into objects of the script, and replaces others."""

    def __init__(self, losses, by_epoch, sums, names):
        super().__init__()
        self.losses, self.by_epoch, self.sums, self.names = losses, by_epoch, sums, names

    def note(self):
        self.losses.append(0.5)
        self.by_epoch[0] = 0.5
        self.sums += 1.0
        self.names = [*self.names, "more"]


def test_what_a_callback_shares_with_the_script_is_restored_for_both(tmp_path):
    def of_script():
        return [], {}, np.zeros(2), ["first"]

    first, second = of_script(), of_script()
    callback, again = Recorder(*first), Recorder(*second)
    before = begun(callback)
    callback.note()
    assert begun(again).restore(*through_a_checkpoint(tmp_path, *before.save(set())[:2])) == []
    assert again.names == ["first", "more"]  # Replaced: the script's own stays.
    losses, by_epoch, sums, names = second
    assert (losses, by_epoch, sums.tolist(), names) == ([0.5], {0: 0.5}, [1.0, 1.0], ["first"])
    assert again.losses is losses and again.by_epoch is by_epoch and again.sums is sums


class Fields(keras.callbacks.Callback):
    """Holds arrays in the byte order of FITS, netCDF and IDX files, and arrays that are more than their numbers."""

    def __init__(self):
        super().__init__()
        self.big, self.short, self.text = np.zeros(3, ">i4"), np.zeros((2, 1), ">f8"), np.zeros(2, ">U3")
        self.shared = self.big
        self.masked = np.ma.array([1.0, 2.0, 3.0], mask=[0, 0, 0])
        self.fields = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
        self.matrix, self.still = np.matrix([[1.0]]), np.ma.array([1.0])

    def note(self):
        self.big[:], self.short[:], self.text[:] = [1, 2, 3], [[0.5], [-2.0]], ["ab", "xyz"]
        self.masked[1] = np.ma.masked
        self.fields.a[0] = 7
        self.matrix[0, 0] = 2.0


def read_by(workers, saved):
    """Returns what each worker reads: the chief reads the files, and the others get what it sends."""
    sent, names = [], checkpoint_format.callback_names(saved)
    hear = [lambda content: sent.append(content) or content, lambda content: sent.pop(0)]
    members = [
        types.SimpleNamespace(num_workers=workers, is_chief=rank == 0, broadcast_bytes=hear[rank])
        for rank in range(workers)
    ]
    return [dict(restore.read(member, saved, names)) for member in members]


@pytest.mark.parametrize("workers", [1, 2])
def test_arrays_of_any_byte_order_are_restored_by_every_worker_and_others_are_named(tmp_path, workers):
    callback = Fields()
    before = begun(callback)
    callback.note()
    state, arrays, lost = before.save(set())
    names = ("masked (MaskedArray)", "fields (recarray)", "matrix (matrix)", "still (MaskedArray)")
    assert lost == [f"Fields.{name}" for name in names]
    assert all(array.dtype.isnative for array in arrays.values())
    saved = checkpoint_format.verify(checkpoint_format.write(tmp_path / "now", 1, arrays, {}))
    for found in read_by(workers, saved):
        again = Fields()
        assert begun(again).restore(state, found) == []
        assert again.big.tolist() == [1, 2, 3] and again.shared is again.big
        assert again.short.tolist() == [[0.5], [-2.0]] and again.text.tolist() == ["ab", "xyz"]
    # As releases before saved them.
    path = checkpoint_format.write(tmp_path / "before", 1, {"callbacks/x": np.array([1, 2], ">i4")}, {})
    for found in read_by(workers, checkpoint_format.verify(path)):
        assert found["callbacks/x"].tolist() == [1, 2]
