"""Iterators over a worker's share end at once: nothing tunes them. See tfdist/cluster/distributed_dataset.py."""

import tensorflow as tf

from tfdist.cluster import distributed_dataset


def test_neither_the_data_nor_what_lies_before_the_device_is_tuned():
    dataset = tf.data.Dataset.range(100).map(lambda x: x + 1, num_parallel_calls=tf.data.AUTOTUNE)
    assert dataset.prefetch(1).options().autotune.enabled is None
    iterator = distributed_dataset.distribute(tf.distribute.OneDeviceStrategy("CPU:0"), dataset)
    assert [int(next(iterator)) for _ in range(3)] == [1, 2, 3]
    (worker,) = iterator._iterators
    (device,) = worker._iterator._device_iterators
    assert device._dataset.options().autotune.enabled is False
    assert distributed_dataset.without_autotuning(dataset).options().autotune.enabled is False
