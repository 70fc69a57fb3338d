"""Iterators over a worker's share end at once: nothing tunes them. See tfdist/cluster/distributed_dataset.py."""

import types

import tensorflow as tf

from tfdist.cluster import distributed_dataset


def test_neither_the_data_nor_what_lies_before_the_device_is_tuned(monkeypatch):
    monkeypatch.setattr(tf.data.Dataset, "__iter__", tf.data.Dataset.__iter__.__wrapped__)  # See tests/conftest.py.
    dataset = tf.data.Dataset.range(9).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    one = distributed_dataset.distribute(strategy, dataset)
    devices = types.SimpleNamespace(worker_devices=["CPU:0", "CPU:0"])  # As for several devices.
    made = strategy.distribute_datasets_from_function
    several = types.SimpleNamespace(extended=devices, distribute_datasets_from_function=made)
    several = distributed_dataset.distribute(several, dataset)
    assert [int(next(iterator)) for iterator in (one, several) for _ in range(2)] == [1, 2, 1, 2]
    (device,) = several._iterators[0]._iterator._device_iterators
    for tuned in (one._dataset, device._dataset):
        assert tuned.options().autotune.enabled is False
