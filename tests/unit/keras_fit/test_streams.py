"""Data that every worker walks: each keeps its own rows of the batches that Keras would read, in the same order."""

import collections
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from parameters import slow_except

from tfdist.data.stream import ReplicaShard
from tfdist.keras_fit import messages
from tfdist.keras_fit.adapters import base, make_adapter

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


def shuffled():
    return slices().shuffle(53, seed=1)


def row_of(index):
    return tf.gather(X, index)


# Each makes a dataset whose maps are divided among the workers.
PIPELINES = {
    "typical": lambda: (slices().shuffle(20).map(work, num_parallel_calls=4).batch(16).prefetch(2), {}),
    "cut and repeated": lambda: (slices().map(work).batch(16, drop_remainder=True).repeat(3).skip(1).take(5), {}),
    "two maps": lambda: (slices().map(work).repeat(2).map(lambda x, y: ({"a": x + 1}, y)).batch(10), {}),
    "inputs alone": lambda: (tf.data.Dataset.range(40).map(row_of).map(work).batch(8), {}),
}


def feed(make):
    tf.random.set_seed(3)  # As in a new process.
    data, options = make()
    return make_adapter.make_data_adapter(data, None, None, base.DataOptions(**options))


def elements(make, workers, first_step=0):
    """The steps of all replicas, divided among this number of workers; and how often each worker mapped an element."""
    per, made, worked = REPLICAS // workers, [], []
    for rank in range(workers):
        opened = feed(make)
        opened.sample(16)
        share = ReplicaShard(first_replica=rank * per, local_replicas=per, num_replicas=REPLICAS)
        calls.clear()
        steps = opened.steps - first_step
        dataset = opened.dataset(share, first_step, opened.steps).take(steps * per)
        made.append(list(dataset.as_numpy_iterator()))
        worked.append(calls["made"])
    return [made[replica // per][step * per + replica % per] for step in range(steps) for replica in range(4)], worked


def joined(parts):
    """Puts the replicas' shares of each step together again."""
    batches = [parts[first : first + REPLICAS] for first in range(0, len(parts), REPLICAS)]
    return [
        tf.nest.map_structure(lambda *rows: np.concatenate(rows), *(one["data"][0] for one in batch if one["count"]))
        for batch in batches
    ]


def assert_equal(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("name", slow_except(PIPELINES, ["typical"]))
def test_workers_make_their_rows_of_the_same_batches_alone(name):
    make = PIPELINES[name]
    assert feed(make).work_of_all is None
    whole, (alone,) = elements(make, 1)
    tf.random.set_seed(3)
    expected = list(make()[0].as_numpy_iterator())
    assert_equal(joined(whole), expected)
    parts, worked = elements(make, 4 if name == "typical" else 2)
    assert_equal(parts, whole)
    assert name != "typical" or (alone == 53 and max(worked) <= 16)
    later, _ = elements(make, 1, first_step=2)
    assert_equal(later, whole[2 * REPLICAS :])


@pytest.mark.parametrize(
    "make",
    [
        lambda: slices().map(lambda x, y: work(x, y, stateful=True)).batch(16),
        lambda: slices().map(lambda x, y: (x + tf.random.uniform([3], seed=1), y)).batch(16),
        lambda: slices().map(work).cache().batch(16),
        lambda: slices().map(work).shuffle(30).batch(16),
        lambda: slices().batch(16).map(lambda x, y: (x - tf.reduce_mean(x), y)),
        lambda: slices().map(work).filter(lambda x, y: y > 0).batch(16),
    ],
)
def test_work_that_is_not_divided_is_told(make):
    assert "Every worker runs all of the tf.data.Dataset" in feed(lambda: (make(), {})).work_of_all


@pytest.fixture
def unwarned(monkeypatch):
    monkeypatch.setattr(messages, "_logged", set())


def epoch(data, first=0):
    """The batches of an epoch of training, as the loop reads them."""
    data.begin_epoch(first)
    read = iter(data.elements(ReplicaShard(), first))
    found = [next(read)["data"][0] for _ in range(data.steps - first)]
    data.end_epoch()
    return tf.nest.map_structure(lambda one: one.numpy(), found)


def halves():
    return [tf.data.Dataset.range(first, first + 24).shuffle(24, seed=first + 1) for first in (0, 24)]


# Pipelines whose shuffles are of their own in each pass -> and the number of iterators that Keras makes in an epoch.
SHUFFLED = {
    "mapped behind": (lambda: shuffled().map(lambda x, y: (x + 1, y), num_parallel_calls=2).batch(16), 2),
    "side by side": (lambda: tf.data.Dataset.zip((shuffled().batch(16), shuffled().batch(16))), 2),
    "padded": (lambda: shuffled().padded_batch(16), 2),
    "joined": (lambda: halves()[0].concatenate(halves()[1]).batch(8).map(lambda x: 2 * x), 2),
    "unknown length": (lambda: shuffled().filter(lambda x, y: y < 2).batch(16), 1),
    "files": (
        lambda: (
            tf.data.Dataset.range(4).shuffle(4, seed=5).interleave(lambda i: tf.data.Dataset.range(i, i + 6)).batch(4)
        ),
        1,
    ),
    "kept in memory": (lambda: shuffled().batch(16).cache(), 2),
}


def passes_of(name):
    """Four epochs as Keras reads them: after each it may make an iterator that it does not use."""
    tf.random.set_seed(3)
    make, each = SHUFFLED[name]
    dataset, found = make(), []
    for _ in range(4):
        found.append([*dataset.as_numpy_iterator()])
        for _ in range(each - 1):
            iter(dataset)
    return found


@pytest.mark.parametrize("name", slow_except(SHUFFLED, ["mapped behind"]))
def test_trainings_read_the_passes_of_keras_also_after_a_resume(name):
    """Whatever was looked at or read ahead."""
    expected = passes_of(name)
    tf.random.set_seed(3)
    dataset = SHUFFLED[name][0]()
    for fit in range(2):
        data = make_adapter.make_data_adapter(dataset, None, None, base.DataOptions())
        data.sample(16)
        data.reset()
        for number in range(2):
            assert_equal(epoch(data), expected[2 * fit + number])
    # As after an earlier start, whose first training is finished and whose second one is resumed.
    tf.random.set_seed(3)
    dataset = SHUFFLED[name][0]()
    first, second = (make_adapter.make_data_adapter(dataset, None, None, base.DataOptions()) for _ in range(2))
    for data, epochs in ((first, 2), (second, 1)):
        data.reset()
        for _ in range(epochs):
            data.repeat_epoch()
    assert_equal(epoch(second, first=1), expected[3][1:])


def test_a_dataset_that_repeats_its_shuffle_begins_anew_in_each_training_with_a_line(unwarned, capsys):
    dataset = tf.data.Dataset.range(12).shuffle(12, seed=1).repeat().map(lambda x: x, num_parallel_calls=2).batch(4)
    expected = list(itertools.islice(dataset.as_numpy_iterator(), 8))
    dataset, options = tf.data.Dataset.range(12).shuffle(12, seed=1).repeat().batch(4), base.DataOptions(steps=4)
    for fit in range(2):
        data = make_adapter.make_data_adapter(dataset, None, None, options)
        data.reset()
        if fit == 0:
            assert_equal([*epoch(data), *epoch(data)], expected)
        else:  # Resumed.
            data.repeat_epoch()
            assert_equal(epoch(data, first=1), expected[5:])
    assert "repeats a shuffle" in capsys.readouterr().err


def test_steps_that_do_not_divide_a_pass_are_told(unwarned, capsys):
    dataset = tf.data.Dataset.range(16).batch(4)
    data = make_adapter.make_data_adapter(dataset, None, None, base.DataOptions(steps=3))
    assert "3 steps per epoch do not divide the 4 batches" in capsys.readouterr().err
    data.reset()
    assert [one[0] // 4 for _ in range(2) for one in epoch(data)] == [0, 1, 2, 3, 0, 1]


class Rows(keras.utils.PyDataset):
    """Batches of an order that changes at the end of each epoch."""

    order = np.arange(53)

    @property
    def num_batches(self):
        return 4

    def __getitem__(self, index):
        rows = self.order[16 * index : 16 * index + 16]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.order = np.roll(self.order, 5)


def test_workers_read_the_batches_of_a_py_dataset_alike_also_after_a_resume():
    whole, _ = elements(lambda: (Rows(), {}), 1)
    parts, _ = elements(lambda: (Rows(), {}), 4)
    assert_equal(parts, whole)
    first, second = (feed(lambda: (Rows(), {"shuffle": True})) for _ in range(2))
    first.reset()
    read = [epoch(first) for _ in range(3)]
    second.reset()
    for _ in range(2):
        second.repeat_epoch()
    assert_equal(epoch(second, first=1), read[2][1:])
    assert sorted(np.concatenate([one[1] for one in read[1]]).tolist()) == sorted(Y.tolist())


def test_class_weights_are_weights_of_the_examples():
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((4, 2)), [0, 1, 1, 2])).batch(4)
    options = base.DataOptions(class_weight={0: 0.5, 2: 3.0})
    found = make_adapter.make_data_adapter(dataset, None, None, options)
    element = next(iter(found.one_pass(ReplicaShard(), reset=True)))
    assert element["data"][0][2].numpy().tolist() == [0.5, 1.0, 1.0, 3.0]
