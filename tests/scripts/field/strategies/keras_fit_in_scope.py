"""After TensorFlow's "Distributed training with Keras" and keras.io's guide on distributed training with TensorFlow."""

import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")
x = np.random.default_rng(0).random((100, 12)).astype("float32")
y = (x.sum(axis=1) > 6).astype("int32")
train_dataset = tf.data.Dataset.from_tensor_slices((x[:70], y[:70])).cache().batch(16)
test_dataset = tf.data.Dataset.from_tensor_slices((x[70:], y[70:])).batch(16)
os.makedirs("ckpt", exist_ok=True)


def make_or_restore_model():
    checkpoints = [f"ckpt/{name}" for name in os.listdir("ckpt")]
    if checkpoints:
        return keras.models.load_model(max(checkpoints, key=os.path.getctime))
    keras.utils.set_random_seed(2)
    inputs = keras.Input(shape=(12,))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8, activation="relu")(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    return model


def run_training(epochs=1):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_or_restore_model()
    callbacks = [
        keras.callbacks.ModelCheckpoint(filepath="ckpt/ckpt-{epoch}.keras", save_freq="epoch"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 1e-2 if epoch < 2 else 1e-3),
        keras.callbacks.TensorBoard(log_dir="./logs"),
    ]
    history = model.fit(train_dataset, epochs=epochs, callbacks=callbacks, validation_data=test_dataset, verbose=2)
    return model, history


_, first = run_training(epochs=2)
model, second = run_training(epochs=1)
distributed = strategy.experimental_distribute_dataset(test_dataset)
model.save("saved_model.keras")
with strategy.scope():
    again = keras.models.load_model("saved_model.keras").evaluate(test_dataset, verbose=0)
record(
    histories=[first.history, second.history],
    evaluated=[model.evaluate(test_dataset), model.evaluate(distributed, verbose=0), again],
    weights=model.get_weights(),
    files=sorted(os.listdir("ckpt")),
    classes=[type(strategy).__name__, isinstance(strategy, tf.distribute.Strategy)],
)
