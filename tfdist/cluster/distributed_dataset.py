"""Iterators over a worker's shard of a dataset, without tf.data's autotuning, so that they close quickly.

tf.data tunes each iterator in a thread that sleeps up to a minute between two rounds. Closing an iterator wakes the
thread and joins it. But `CancellationManager::StartCancel` wakes it before `IsCancelled` is true, so it may sleep
again, often on a single CPU core. Closing then takes up to a minute, too long near a job's time limit. Without
autotuning, `tf.data.AUTOTUNE` means one parallel call per CPU core.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfdist.config.patching import patch


def distribute(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Iterator:
    """Returns an iterator over this worker's `dataset`, which has one element per local replica and step.

    A single replica on the CPU reads the dataset directly. TensorFlow's iterator for several devices would pass each
    element through two more buffers and a remote call, which takes 0.3 ms of CPU time.
    """
    devices = [tf.DeviceSpec.from_string(device) for device in strategy.extended.worker_devices]
    if [(device.device_type, device.device_index) for device in devices] == [("CPU", 0)]:
        return iter(without_autotuning(dataset))
    with device_datasets_without_autotuning():
        return iter(strategy.distribute_datasets_from_function(lambda context: without_autotuning(dataset)))


def distribute_global(strategy: tf.distribute.Strategy, dataset: tf.data.Dataset) -> Iterator:
    """Returns an iterator over a dataset of global batches, which TensorFlow shards over all replicas."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = without_autotuning(dataset.with_options(options))
    with device_datasets_without_autotuning():
        return iter(strategy.experimental_distribute_dataset(dataset))


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with autotuning disabled."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def device_datasets_without_autotuning() -> AbstractContextManager[None]:
    """In the block, disables autotuning in the datasets that TensorFlow adds for each device: they have no options."""
    return patch(
        multi_device_iterator_ops,
        "_create_device_dataset",
        lambda original, *args: without_autotuning(original(*args)),
    )
