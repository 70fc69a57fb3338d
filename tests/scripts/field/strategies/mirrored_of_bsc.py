"""After the pages of BSC on CTE-POWER: a network of Keras on the GPUs of a node, with the arguments of the command."""

import argparse
import time

import numpy as np
import tensorflow as tf
from recording import record

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--n_gpus", type=int, default=1)
args = parser.parse_args()

device_type = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
devices = tf.config.experimental.list_physical_devices(device_type)
devices_names = [d.name.split("e:")[1] for d in devices]
strategy = tf.distribute.MirroredStrategy(devices=devices_names[: args.n_gpus])

random = np.random.default_rng(0)
x_train, x_test = random.integers(0, 255, (64, 6, 6, 3)), random.integers(0, 255, (32, 6, 6, 3))
y_train, y_test = x_train.sum(axis=(1, 2, 3)) % 5, x_test.sum(axis=(1, 2, 3)) % 5
preprocess = lambda image, label: (tf.cast(image, tf.float32) / 255, label)  # noqa: E731
dataset_train = tf.data.Dataset.from_tensor_slices((x_train, y_train)).map(preprocess).batch(args.batch_size)
dataset_test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).map(preprocess).batch(args.batch_size)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((6, 6, 3)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(5, activation="softmax"),
        ]
    )
    values = np.random.default_rng(1)
    model.set_weights([0.3 * values.normal(size=one.shape) for one in model.get_weights()])
    opt = tf.keras.optimizers.SGD(0.01)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
start = time.time()
history = model.fit(dataset_train, epochs=args.epochs, validation_data=dataset_test, verbose=2)
print("seconds", time.time() - start)
record(history=history.history, score=model.evaluate(dataset_test, verbose=0), weights=model.get_weights())
