"""After TensorFlow's "Custom training with tf.distribute.Strategy"."""

import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

random = np.random.default_rng(0)
train_images = random.normal(size=(77, 8, 8, 1)).astype("float32")
train_labels = (train_images.mean(axis=(1, 2, 3)) > 0).astype("int64")
test_images, test_labels = train_images[:22] + 0.1, train_labels[:22]

strategy = tf.distribute.MirroredStrategy()
print("Number of devices:", strategy.num_replicas_in_sync)
GLOBAL_BATCH_SIZE, EPOCHS = 16, 3
train_dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
train_dataset = train_dataset.shuffle(77, seed=2).batch(GLOBAL_BATCH_SIZE)
test_dataset = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(GLOBAL_BATCH_SIZE)
train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
test_dist_dataset = strategy.experimental_distribute_dataset(test_dataset)


def create_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(1e-3)),
        ]
    )


checkpoint_prefix = os.path.join("./training_checkpoints", "ckpt")

with strategy.scope():
    loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def compute_loss(labels, predictions, model_losses):
        loss = tf.nn.compute_average_loss(loss_object(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE)
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        return loss

    test_loss = keras.metrics.Mean(name="test_loss")
    train_accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
    test_accuracy = keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")
    model = create_model()
    model.build((None, 8, 8, 1))
    optimizer = keras.optimizers.Adam(learning_rate=0.01)
    optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, model=model)


def train_step(inputs):
    images, labels = inputs
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = compute_loss(labels, predictions, model.losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_accuracy.update_state(labels, predictions)
    return loss


def test_step(inputs):
    images, labels = inputs
    predictions = model(images, training=False)
    test_loss.update_state(loss_object(labels, predictions))
    test_accuracy.update_state(labels, predictions)


@tf.function
def distributed_train_step(dataset_inputs):
    per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)


@tf.function
def distributed_test_step(dataset_inputs):
    return strategy.run(test_step, args=(dataset_inputs,))


rows = []
for epoch in range(EPOCHS):
    total_loss, num_batches = 0.0, 0
    for x in train_dist_dataset:
        total_loss += distributed_train_step(x)
        num_batches += 1
    for x in test_dist_dataset:
        distributed_test_step(x)
    if epoch % 2 == 0:
        checkpoint.save(checkpoint_prefix)
    row = [total_loss / num_batches, train_accuracy.result(), test_loss.result(), test_accuracy.result()]
    rows.append([float(one) for one in row])
    print("Epoch", epoch + 1, rows[-1])
    test_loss.reset_state()
    train_accuracy.reset_state()
    test_accuracy.reset_state()


# Also a whole epoch in a function.
@tf.function
def distributed_train_epoch(dataset):
    total_loss, num_batches = 0.0, 0
    for x in dataset:
        per_replica_losses = strategy.run(train_step, args=(x,))
        total_loss += strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)
        num_batches += 1
    return total_loss / tf.cast(num_batches, tf.float32)


rows.append([float(distributed_train_epoch(train_dist_dataset))])

latest = tf.train.latest_checkpoint("./training_checkpoints")
record(rows=rows, weights=model.get_weights())
record(files=sorted(os.listdir("training_checkpoints")), latest=os.path.basename(latest))
