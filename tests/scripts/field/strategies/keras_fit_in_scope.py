"""After TensorFlow's "Distributed training with Keras" and keras.io's guide on distributed training with TensorFlow."""

import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")
random = np.random.default_rng(0)
x = random.random((100, 12)).astype("float32")
y = (x.sum(axis=1) > 6).astype("int32")
BATCH_SIZE = 16


def get_dataset():
    train = tf.data.Dataset.from_tensor_slices((x[:70], y[:70]))
    rest = tf.data.Dataset.from_tensor_slices((x[70:], y[70:])).batch(BATCH_SIZE)
    return train.cache().batch(BATCH_SIZE), rest


def get_compiled_model():
    keras.utils.set_random_seed(2)
    inputs = keras.Input(shape=(12,))
    hidden = keras.layers.Dense(8, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    values = np.random.default_rng(1)
    model.set_weights([0.3 * values.normal(size=one.shape) for one in model.get_weights()])
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


checkpoint_dir = "./ckpt"
if not os.path.exists(checkpoint_dir):
    os.makedirs(checkpoint_dir)


def make_or_restore_model():
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("Restoring from", latest_checkpoint)
        return keras.models.load_model(latest_checkpoint)
    print("Creating a new model")
    return get_compiled_model()


def run_training(epochs=1):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_or_restore_model()
    train_dataset, val_dataset = get_dataset()
    callbacks = [
        keras.callbacks.ModelCheckpoint(filepath=checkpoint_dir + "/ckpt-{epoch}.keras", save_freq="epoch"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 if epoch < 2 else 1e-3),
        keras.callbacks.TensorBoard(log_dir="./logs"),
    ]
    history = model.fit(train_dataset, epochs=epochs, callbacks=callbacks, validation_data=val_dataset, verbose=2)
    return model, history


_, first = run_training(epochs=2)
model, second = run_training(epochs=1)
train_dataset, test_dataset = get_dataset()
loss, accuracy = model.evaluate(test_dataset)
distributed = strategy.experimental_distribute_dataset(test_dataset)
dist_loss, dist_accuracy = model.evaluate(distributed, verbose=0)

path = "saved_model.keras"
model.save(path)
with strategy.scope():
    replicated_model = keras.models.load_model(path)
    again = replicated_model.evaluate(test_dataset, verbose=0)
record(
    first=first.history,
    second=second.history,
    evaluated=[loss, accuracy, *again],
    distributed=[dist_loss, dist_accuracy],
    weights=model.get_weights(),
    files=sorted(os.listdir("ckpt")),
    classes=[
        type(strategy).__name__,
        isinstance(strategy, tf.distribute.MirroredStrategy),
        isinstance(strategy, tf.distribute.Strategy),
        type(strategy) is tf.distribute.MirroredStrategy,
    ],
)
