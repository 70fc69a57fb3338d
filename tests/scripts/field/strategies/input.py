"""After TensorFlow's "Distributed Input", "Distributed training" and strategy.gather."""

import numpy as np
import tensorflow as tf
from recording import record

mirrored_strategy = tf.distribute.MirroredStrategy()
global_batch_size = 12
dataset = tf.data.Dataset.from_tensor_slices(np.arange(30, dtype="float32")).batch(global_batch_size)
dist_dataset = mirrored_strategy.experimental_distribute_dataset(dataset)


@tf.function
def total(batch):
    sums = mirrored_strategy.run(lambda part: tf.reduce_sum(part * 2), args=(batch,))
    return mirrored_strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)


sums, gathered, means = [], [], []
for batch in dist_dataset:
    sums.append(float(total(batch)))
    squares = mirrored_strategy.run(lambda part: part * part, args=(batch,))
    gathered.append(np.sort(mirrored_strategy.gather(squares, axis=0).numpy()))
    means.append(float(mirrored_strategy.reduce("MEAN", squares, axis=0)))

iterator = iter(mirrored_strategy.experimental_distribute_dataset(dataset.repeat()))
optional, taken = iterator.get_next_as_optional(), 0
while optional.has_value().numpy() and taken < 4:
    sums.append(float(total(optional.get_value())))
    optional, taken = iterator.get_next_as_optional(), taken + 1


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    pairs = tf.data.Dataset.from_tensors(([1.0], [2.0])).repeat(48).batch(48)
    pairs = pairs.unbatch().shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return pairs.batch(batch_size).prefetch(2)


from_function = iter(mirrored_strategy.distribute_datasets_from_function(dataset_fn))
with mirrored_strategy.scope():
    weight = tf.Variable(
        [[0.5]], aggregation=tf.VariableAggregation.SUM, synchronization=tf.VariableSynchronization.ON_WRITE
    )
    seen = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM, synchronization=tf.VariableSynchronization.ON_READ)


@tf.function
def step(iterator):
    def replica_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum((x @ weight - y) ** 2, axis=-1), global_batch_size=12)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        seen.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        return loss

    return mirrored_strategy.reduce("SUM", mirrored_strategy.run(replica_fn, args=(next(iterator),)), axis=None)


losses = [float(step(from_function)) for _ in range(4)]
values = mirrored_strategy.experimental_distribute_values_from_function(lambda context: tf.constant(1.0))
ones = float(mirrored_strategy.reduce("MEAN", values, axis=None))
local = mirrored_strategy.experimental_local_results(values)
record(sums=sums, gathered=gathered, means=means, losses=losses, ones=ones, local=float(local[0]))
record(weight=weight.numpy(), seen=seen.numpy(), inside=tf.distribute.in_cross_replica_context())
