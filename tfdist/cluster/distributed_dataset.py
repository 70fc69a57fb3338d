"""Iterators over a worker's share of the data that end at once.

tf.data tunes each iterator in a thread of its own, which sleeps for longer and longer, up to a minute, between two
looks. An iterator that ends wakes it and waits for it; but `CancellationManager::StartCancel` wakes before
`IsCancelled` says why, so that the thread may go back to sleep, as it often does on a single processor. The end then
takes up to a minute: longer than a job has left whose time is up. Hence nothing is tuned here: `tf.data.AUTOTUNE` is
then as many calls at once as there are processors.
"""

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Iterator:
    """Returns an iterator over this worker's `dataset`, which has an element per local replica and step."""
    with _untuned_device_datasets():
        return iter(strategy.distribute_datasets_from_function(lambda context: without_autotuning(dataset)))


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same dataset, without the thread that tunes it."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@contextlib.contextmanager
def _untuned_device_datasets() -> Iterator[None]:
    """Reaches the datasets that TensorFlow puts between ours and each device, which have no options to set."""
    make = multi_device_iterator_ops._create_device_dataset
    multi_device_iterator_ops._create_device_dataset = lambda *args: without_autotuning(make(*args))
    try:
        yield
    finally:
        multi_device_iterator_ops._create_device_dataset = make
