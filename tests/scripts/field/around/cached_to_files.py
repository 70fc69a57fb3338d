import json
import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

os.makedirs("cache", exist_ok=True)
keras.utils.set_random_seed(3)
x = np.random.rand(30, 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).map(lambda a, b: (a - 0.5, b)).cache("cache/train").batch(6)
with tf.device("/CPU:0"):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(data, epochs=3, verbose=0)
with open("cache/history.json", "w") as file:
    json.dump(history.history, file)
with open("cache/history.json") as file:
    record(read=json.load(file), kept=model.count_params())
