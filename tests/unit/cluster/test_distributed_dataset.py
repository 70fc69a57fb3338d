"""Iterators over a worker's share end at once: nothing tunes them. See tfdist/cluster/distributed_dataset.py."""

import types

import tensorflow as tf

from tfdist.cluster import distributed_dataset


def test_neither_the_data_nor_what_lies_before_the_device_is_tuned(monkeypatch):
    monkeypatch.setattr(tf.data.Dataset, "__iter__", tf.data.Dataset.__iter__.__wrapped__)  # See tests/conftest.py.
    dataset = tf.data.Dataset.range(100).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    assert dataset.prefetch(1).options().autotune.enabled is None
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    iterator = distributed_dataset.distribute(strategy, dataset)
    assert [int(next(iterator)) for _ in range(3)] == [1, 2, 3]
    assert iterator._dataset.options().autotune.enabled is False
    assert distributed_dataset.without_autotuning(dataset).options().autotune.enabled is False
    # As for several devices, or one that is not a CPU.
    devices = types.SimpleNamespace(worker_devices=["CPU:0", "CPU:0"])
    several = types.SimpleNamespace(
        extended=devices, distribute_datasets_from_function=strategy.distribute_datasets_from_function
    )
    iterator = distributed_dataset.distribute(several, dataset)
    assert [int(next(iterator)) for _ in range(3)] == [1, 2, 3]
    (worker,) = iterator._iterators
    (device,) = worker._iterator._device_iterators
    assert device._dataset.options().autotune.enabled is False
