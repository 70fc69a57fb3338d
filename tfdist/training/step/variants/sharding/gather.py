"""The gather of a value of all replicas inside a step; called in `strategy.run`."""

import itertools

import tensorflow as tf

from tfdist.training.step import collectives

# Of the replicas, and of the first of `new_keys`; those that TensorFlow chooses itself start at 1 and at 100.
_GROUP_KEY, _keys = 2**20, itertools.count(2**20)


def new_keys(count: int) -> list[int]:
    """Returns keys of `all_gather`, the same on all workers if all call this equally often."""
    return [next(_keys) for _ in range(count)]


def all_gather(value: tf.Tensor, key: int, *, like: tf.Variable, one_cpu: bool) -> tf.Tensor:
    """Returns `value` [n] of all replicas, with the same bits: [replicas, n]; called in `strategy.run`.

    Args:
        key: of the gather in a step, one of `new_keys`: the same on all replicas.
        like: a variable on the replica's device.
        one_cpu: whether each worker has one replica, on its CPU. Then TensorFlow's op is called directly: the method of
            its replica context also gathers the lengths, and copies the values six times.
    """
    if one_cpu:
        rows = tf.raw_ops.CollectiveGatherV2(
            input=value,
            group_size=collectives.num_replicas(),
            group_key=_GROUP_KEY,
            instance_key=key,
            ordering_token=[],
            communication_hint="ring",
        )
    else:
        with tf.device(like.handle.device):
            value = tf.identity(value)
        rows = tf.distribute.get_replica_context().all_gather(value, axis=0)
    return tf.reshape(rows, [collectives.num_replicas(), *value.shape])
