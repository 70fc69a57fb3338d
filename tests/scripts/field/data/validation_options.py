import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(10)
x, y = np.random.rand(33, 4).astype("float32"), np.random.randint(0, 3, 33)
w = np.linspace(0.5, 2.0, 33).astype("float32")


def batches(size=8):
    while True:
        for i in range(0, 33, size):
            yield x[i : i + size], y[i : i + size], w[i : i + size]


def finite(size=5):
    for i in range(0, 25, size):
        yield x[i : i + size], y[i : i + size]


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
first = model.fit(
    batches(), steps_per_epoch=4, epochs=4, validation_data=batches(4), validation_steps=3, validation_freq=4, verbose=0
)
second = model.fit(
    x,
    y,
    batch_size=9,
    epochs=3,
    shuffle=False,
    validation_data=(x, y, w),
    validation_batch_size=10,
    validation_freq=[1, 3],
    verbose=0,
)
dataset = tf.data.Dataset.from_tensor_slices((x, y, w)).batch(11, drop_remainder=True)
third = model.fit(dataset, epochs=2, class_weight=None, validation_data=dataset.take(2), verbose=0)
fourth = model.evaluate(finite(), steps=5, return_dict=True, verbose=0)
record(first=first.history, second=second.history, third=third.history, fourth=fourth, weights=model.get_weights())
