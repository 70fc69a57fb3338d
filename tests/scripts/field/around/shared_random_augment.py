import random

import keras
import numpy as np
from recording import record

# draws: unseeded augmentation in numpy
x = np.linspace(0, 1, 120).reshape(30, 4).astype("float32")
if random.random() < 2:
    x = x + np.random.default_rng().normal(0, 0.001, x.shape).astype("float32")
order = np.random.permutation(30)
x = x[order]
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], epochs=2, batch_size=30, shuffle=False)
record(loss=history.history["loss"])
