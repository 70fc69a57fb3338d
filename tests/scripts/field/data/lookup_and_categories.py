import keras
import numpy as np
import tensorflow as tf
from recording import record

cities = np.array(["Oslo", "Rome", "Bern", "Rome", "Oslo", "Lima"] * 6)
prices = np.arange(36, dtype="float32") / 36
lookup = keras.layers.StringLookup(vocabulary=["Oslo", "Rome", "Bern"], output_mode="one_hot")
data = tf.data.Dataset.from_tensor_slices((cities, prices)).batch(7).map(lambda c, p: (lookup(c), p))
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=3)
record(history=history.history, weights=model.get_weights())
