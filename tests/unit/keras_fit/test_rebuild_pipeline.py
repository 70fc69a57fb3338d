"""Each worker makes its own rows of a user's `tf.data` pipeline or PyDataset, and what comes out stays the same."""

import collections
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, make_adapter, rebuild_pipeline

X, Y = np.arange(159, dtype=np.float32).reshape(53, 3), np.arange(53) % 3
REPLICAS = 4
calls: collections.Counter = collections.Counter()


def work(x, y=None, *, stateful=False):
    """What is done to each example, and counted."""

    def note(array):
        calls["made"] += 1
        return 2 * array

    made = tf.ensure_shape(tf.numpy_function(note, [x], x.dtype, stateful=stateful), x.shape)
    return made if y is None else (made, y)


def slices():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def row_of(index):
    return tf.gather(X, index)


# Each makes a dataset, and the further arguments of the feed.
PIPELINES = {
    "typical": lambda: (slices().shuffle(20).map(work, num_parallel_calls=4).batch(16).prefetch(2), {}),
    "shuffled behind": lambda: (slices().map(work).shuffle(30).batch(16), {}),
    "cut and repeated": lambda: (slices().map(work).batch(16, drop_remainder=True).repeat(3).skip(1).take(5), {}),
    "two maps, of classes": lambda: (
        slices().map(work).repeat(2).map(lambda x, y: ({"a": x + 1}, y)).batch(10),
        {"class_weight": {0: 2.0, 1: 3.0, 2: 0.5}},
    ),
    "single": lambda: (slices().shuffle(9).map(work), {"batch_size": 7}),
    "inputs alone": lambda: (tf.data.Dataset.range(40).map(row_of).map(work).batch(8), {}),
}


def shuffled():
    return slices().shuffle(53, seed=1)


# What a look before the training must not take from a shuffle.
SHUFFLED = {
    "batches": lambda: shuffled().batch(16),
    "batches that are mapped": lambda: shuffled().map(lambda x, y: (x + 1, y)).batch(16).map(lambda x, y: (2 * x, y)),
    "a part, cached": lambda: shuffled().batch(16).take(3).cache(),
    "batches side by side": lambda: tf.data.Dataset.zip((shuffled().batch(16), shuffled().batch(16))).map(
        lambda one, other: (one[0] + other[0], one[1])
    ),
    "unknown length": lambda: shuffled().filter(lambda x, y: y < 2).batch(16),
}


# Each takes seconds of tracing.
@pytest.mark.parametrize("name", slow_except(SHUFFLED, ["unknown length"]))
def test_inspecting_the_data_uses_no_pass_of_a_shuffle(name):
    make = SHUFFLED[name]
    tf.random.set_seed(3)
    passes = make()
    expected = [list(passes.as_numpy_iterator()) for _ in range(3)]
    data = feed(lambda: (make(), {}))
    batches = data.stream(0, 2 * data.steps).take(2 * data.steps).as_numpy_iterator()
    # Keras makes an iterator after an epoch that it does not use, unless it has to find out where the epoch ends.
    second = expected[1] if name == "unknown length" else expected[2]
    for found, wanted in zip(batches, expected[0] + second, strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    assert data.batch_size == 16


@pytest.mark.parametrize("name", slow_except(SHUFFLED, ["batches"]))
def test_workers_of_different_speeds_read_the_same_passes_of_a_shuffle(name):
    """What is read ahead of the last step would take another pass: rows would be evaluated twice, and others never."""
    make, passes = SHUFFLED[name], []
    for waits in (0.0, 0.2):
        tf.random.set_seed(3)
        data, own = feed(lambda: (make(), {})), []
        for _ in range(2):
            opened = iter(data.dataset(ReplicaShard(num_replicas=1), 0, data.steps))
            own.append([tf.nest.flatten(next(opened)) for _ in range(data.steps)])
            time.sleep(waits)
            del opened
        passes.append(own)
    tf.nest.map_structure(np.testing.assert_array_equal, *passes)


CONTINUED = {
    **{name: make for name, make in SHUFFLED.items() if name != "a part, cached"},
    "mapped behind": lambda: shuffled().map(lambda x, y: (x + 1, y), num_parallel_calls=2).batch(16),
    "mapped before": lambda: slices().map(lambda x, y: (x + 1, y)).shuffle(53, seed=1).batch(16),
}


@pytest.mark.parametrize("name", slow_except(CONTINUED, ["mapped behind"]))
def test_a_second_fit_continues_the_passes_as_in_keras_whatever_was_read_ahead(name):
    make = CONTINUED[name]
    tf.random.set_seed(3)
    passes = make()
    expected = [list(passes.as_numpy_iterator()) for _ in range(5)][2 if name == "unknown length" else 4]
    tf.random.set_seed(3)
    dataset, options = make(), base.DataOptions(continues=True)
    first = make_adapter.make_data_adapter(dataset, None, None, options)
    list(first.stream(0, 4 * first.steps).take(3 * first.steps + 1))
    first.count_passes(2 * first.steps, True)
    second = make_adapter.make_data_adapter(dataset, None, None, options)
    assert (second.sharded is None) == (first.sharded is None) and not second.order_unknown
    for found, wanted in zip(second.stream(0, 2 * second.steps).take(second.steps), expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("ended_early", [False, True])
@pytest.mark.parametrize("finish", [lambda one: one.padded_batch(16), lambda one: one.shuffle(9, seed=2).batch(16)])
def test_adapter_knows_which_orders_cannot_be_continued(finish, ended_early):
    dataset, options = finish(shuffled()), base.DataOptions(continues=True)
    for expected in (False, ended_early):
        data = make_adapter.make_data_adapter(dataset, None, None, options)
        assert bool(data.order_unknown) == expected
        data.count_passes(data.steps, ended_early)


class Rows(keras.utils.PyDataset):
    """Tells how many rows a batch has, and makes those that are wanted."""

    order = np.arange(53)

    @property
    def num_batches(self):
        return 4

    def num_rows(self, index):
        return len(self.order[16 * index : 16 * index + 16])

    def read_rows(self, index, low, high):
        rows = self.order[16 * index : 16 * index + 16][low:high]
        calls["made"] += len(rows)
        return X[rows], Y[rows]

    def __getitem__(self, index):
        return self.read_rows(index, 0, 16)

    def on_epoch_end(self):
        self.order = np.roll(self.order, 5)


def feed(make):
    tf.random.set_seed(3)  # As in a new process.
    data, options = make()
    return make_adapter.make_data_adapter(data, None, None, base.DataOptions(**options))


def elements(make, workers, steps, first_step=0):
    """The steps of all replicas, divided among this number of workers; and how often each worker mapped an element."""
    per, made, worked = REPLICAS // workers, [], []
    for rank in range(workers):
        opened = feed(make)
        opened.sample()
        share = ReplicaShard(first_replica=rank * per, local_replicas=per, num_replicas=REPLICAS)
        calls.clear()
        dataset = opened.dataset(share, first_step, first_step + steps).take(steps * per)
        made.append(list(dataset.with_options(still()).as_numpy_iterator()))
        worked.append(calls["made"])
    return [made[replica // per][step * per + replica % per] for step in range(steps) for replica in range(4)], worked


def still():
    """Options that keep a pipeline from working ahead, so that its work can be counted."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return options


def joined(parts):
    """Puts the replicas' shares of each step together again."""
    batches = [parts[first : first + REPLICAS] for first in range(0, len(parts), REPLICAS)]
    return [
        tf.nest.map_structure(lambda *rows: np.concatenate(rows), *(one["data"] for one in batch if one["count"]))
        for batch in batches
    ]


def assert_equal(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("name", slow_except(PIPELINES, ["typical"]))
def test_workers_make_their_rows_of_the_same_batches(name):
    make, steps = PIPELINES[name], 9
    opened = feed(make)
    assert opened.sharded is not None
    whole, _ = elements(make, 1, steps)
    assert_equal(joined(whole), list(opened.stream(0, steps).take(steps).as_numpy_iterator()))
    parts, _ = elements(make, 4 if name == "typical" else 2, steps)
    assert_equal(parts, whole)
    later, _ = elements(make, 1, steps - 5, first_step=5)
    assert_equal(later, whole[5 * REPLICAS :])


def test_each_worker_works_on_its_rows_alone():
    # 40 steps of 16 examples, where the smaller last batch of a pass is filled up; some more are made ahead.
    (_, (alone,)), (_, two), (_, four) = (elements(PIPELINES["typical"], workers, 40) for workers in (1, 2, 4))
    assert alone >= 640 and max(two) < 0.75 * 640 and max(four) < 0.5 * 640


def test_a_py_dataset_that_can_make_rows_is_asked_for_them_alone():
    def make():
        return Rows(), {}

    whole, (alone,) = elements(make, 1, 20)
    parts, worked = elements(make, 4, 20)
    assert_equal(parts, whole)
    assert alone >= 265 and max(worked) < 0.6 * 265
    assert joined(whole)[4][0][:, 0].tolist() == X[:16, 0].tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: slices().map(lambda x, y: work(x, y, stateful=True)).batch(16),
        lambda: slices().map(lambda x, y: (x + tf.random.uniform([3], seed=1), y)).batch(16),
        lambda: slices().map(work).cache().batch(16),
        lambda: slices().batch(16).map(lambda x, y: (x - tf.reduce_mean(x), y)),
        lambda: slices().map(work).filter(lambda x, y: y > 0).batch(16),
        lambda: slices().map(work).batch(16).cache(),
    ],
)
def test_functions_that_see_whole_batches_get_whole_batches(make):
    assert feed(lambda: (make(), {})).sharded is None


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(messages, "_said", set())


def test_a_tensorflow_with_other_attributes_is_reported_once(unwarned, capsys):
    dataset = slices().map(work).batch(16)
    assert rebuild_pipeline.split_before_maps(dataset) is not None and capsys.readouterr().err == ""
    del dataset._input_dataset._map_func
    assert [rebuild_pipeline.split_before_maps(dataset) for _ in range(2)] == [None, None]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist: WARNING: every worker maps all examples of a tf.data.Dataset, because")
    assert f"TensorFlow {tf.__version__}: " in line and "'_map_func'" in line


def test_an_unknown_op_is_reported_once(unwarned, capsys, monkeypatch):
    datasets = [slices().map(work).batch(size) for size in (16, 8)]
    monkeypatch.setattr(rebuild_pipeline.op_def_registry, "get", lambda op: None)
    assert [rebuild_pipeline.split_before_maps(dataset) for dataset in datasets] == [None, None]
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown op " in line


def test_looking_at_the_first_batch_changes_no_order():
    make = lambda: (slices().shuffle(53).batch(16), {})  # noqa: E731
    looked, opened = feed(make), feed(make)
    assert looked.sample()["the seed of shuffle 0"].dtype == np.int64
    assert_equal(*(list(one.stream(0, 5).take(5).as_numpy_iterator()) for one in (looked, opened)))


BRANCHES = {
    "sampled": lambda parts: tf.data.Dataset.sample_from_datasets([one.repeat() for one in parts], seed=3),
    "joined": lambda parts: parts[0].concatenate(parts[1]),
    "chosen": lambda parts: tf.data.Dataset.choose_from_datasets(
        [one.repeat() for one in parts], tf.data.Dataset.range(2).repeat(16)
    ),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_map_after_batches_of_several_datasets_leaves_their_first_pass(name):
    parts = [tf.data.Dataset.range(first, first + 24).shuffle(24, seed=first + 1) for first in (0, 24)]
    dataset = BRANCHES[name](parts).batch(8).map(lambda x: 2 * x)
    options = base.DataOptions(as_given=True, steps=4 if name == "sampled" else None)
    adapter = make_adapter.make_data_adapter(dataset, None, None, options)
    assert (adapter.batch_size, adapter.steps) == (8, 4 if name != "joined" else 6)
    parts = [tf.data.Dataset.range(first, first + 24).shuffle(24, seed=first + 1) for first in (0, 24)]
    expected = next(iter(BRANCHES[name](parts).batch(8))).numpy() * 2
    assert next(iter(adapter.stream(0, 1)))[0].numpy().tolist() == expected.tolist()


def test_a_choice_that_never_ends_needs_steps():
    endless = tf.data.Dataset.range(4).repeat()
    assert not rebuild_pipeline.ends_by_choice(tf.data.Dataset.choose_from_datasets([endless] * 2, endless))
    chosen = tf.data.Dataset.choose_from_datasets([endless] * 2, tf.data.Dataset.range(2))
    assert rebuild_pipeline.ends_by_choice(chosen.batch(2)) and not rebuild_pipeline.ends_by_choice(chosen.repeat())


def test_missing_rows_are_reported():
    class Short(Rows):
        def read_rows(self, index, low, high):
            return super().read_rows(index, low, high - 1)

        def __getitem__(self, index):
            return X[:16], Y[:16]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Short\.read_rows\(0, 0, 4\) must return 4 rows.*\[3\]"):
        elements(lambda: (Short(), {}), 4, 1)
