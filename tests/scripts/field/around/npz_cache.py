import os

import keras
import numpy as np
from recording import record

if not os.path.exists("data.npz"):
    rng = np.random.default_rng(0)
    x = rng.random((60, 4)).astype("float32")
    np.savez_compressed("data.npz", x=x, y=x.sum(1))
data = np.load("data.npz")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(data["x"], data["y"], epochs=2, batch_size=20, shuffle=False)
record(weights=model.get_weights(), files=sorted(os.listdir(".")))
