import os

import keras
import numpy as np
from recording import record

try:
    os.remove("old.weights.h5")
    removed = True
except FileNotFoundError:
    removed = False
try:
    os.mkdir("runs")
    os.mkdir("runs")
    twice = True
except FileExistsError as error:
    twice = error.filename
keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, 0], epochs=1, batch_size=10, shuffle=False)
try:
    model.load_weights("old.weights.h5")
    loaded = True
except Exception:
    loaded = False
record(removed=removed, twice=twice, loaded=loaded, weights=model.get_weights())
