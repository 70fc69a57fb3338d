"""tf.data from a Python generator whose arguments change between calls of fit."""

import random

import keras
import numpy as np
import tensorflow as tf
from recording import record

random.seed(10)
LEVEL = {"noise": 0.1}
samples = [(np.full(3, i / 20, "float32"), float(i % 2)) for i in range(40)]
random.shuffle(samples)


def produce():
    rng = np.random.default_rng(3)
    for x, y in samples:
        yield x + rng.normal(0, LEVEL["noise"], 3).astype("float32"), y


signature = (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.float32))
dataset = tf.data.Dataset.from_generator(produce, output_signature=signature).batch(8, drop_remainder=True)
# In Keras 3.15, the loss of an epoch of unknown size counts one more batch, of nothing.
dataset = dataset.apply(tf.data.experimental.assert_cardinality(5))
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
losses = []
for noise in (0.1, 0.3, 0.0):
    LEVEL["noise"] = noise
    losses += model.fit(dataset, epochs=2, verbose=0).history["loss"]
rows = [float(batch.numpy().sum()) for batch, _ in dataset.take(2)]
record(losses=losses, rows=rows, predicted=model.predict(dataset, verbose=0))
