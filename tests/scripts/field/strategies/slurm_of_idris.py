"""After the pages of IDRIS on distributed training with TensorFlow: a strategy by Slurm, a loop over epochs."""

import os

import numpy as np
import tensorflow as tf
from recording import record

n_workers = int(os.environ.get("SLURM_NTASKS", 1))
try:
    cluster_resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=12345)
except RuntimeError:  # TensorFlow's, outside of Slurm.
    cluster_resolver = None
implementation = tf.distribute.experimental.CommunicationImplementation.NCCL
if not tf.config.list_physical_devices("GPU"):
    implementation = tf.distribute.experimental.CommunicationImplementation.RING
communication_options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver, communication_options)
print("Number of workers:", n_workers, "replicas:", strategy.num_replicas_in_sync)

# The page multiplies by strategy.num_replicas_in_sync: here all ways shall train alike.
batch_size, steps = 16, 5
tf.keras.utils.set_random_seed(1234)
random = np.random.default_rng(0)
images = random.random((96, 8, 8, 3)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) * 50).astype("int64") % 10
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch_size, drop_remainder=True)
dist_dataset = strategy.experimental_distribute_dataset(dataset.repeat().prefetch(tf.data.AUTOTUNE))

with strategy.scope():
    inputs = tf.keras.Input((8, 8, 3))
    small = tf.keras.layers.GlobalAveragePooling2D()(tf.keras.layers.Conv2D(4, 3, activation="relu")(inputs))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(10)(small))
    values = np.random.default_rng(1)
    model.set_weights([0.3 * values.normal(size=one.shape) for one in model.get_weights()])
    optimizer = tf.keras.optimizers.SGD(0.01 * n_workers, momentum=0.9)
    optimizer.build(model.trainable_variables)
    loss_of_each = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = tf.nn.compute_average_loss(loss_of_each(labels, predictions), global_batch_size=batch_size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def train_epoch(iterator):
    total = 0.0
    for _ in tf.range(steps):
        total += strategy.reduce(
            tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(next(iterator),)), axis=None
        )
    return total / steps


iterator, losses = iter(dist_dataset), []
for epoch in range(3):
    losses.append(float(train_epoch(iterator)))
    if strategy.cluster_resolver is None or strategy.cluster_resolver.task_id in (0, None):
        print("epoch", epoch, "loss", losses[-1])
        model.save_weights("model.weights.h5")

with strategy.scope():
    model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(dataset, epochs=2, verbose=0)
trained = model.get_weights()
model.load_weights("model.weights.h5")
record(losses=losses, history=history.history, trained=trained, saved=model.get_weights())
