import os

import keras
import numpy as np
from recording import record

np.savetxt("raw.txt", np.random.default_rng(1).random((40, 3)))
table = np.loadtxt("raw.txt").astype("float32")
os.rename("raw.txt", "used.txt")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(table[:, :2], table[:, 2:], epochs=2, batch_size=8, shuffle=False)
record(loss=history.history["loss"], files=sorted(os.listdir(".")))
