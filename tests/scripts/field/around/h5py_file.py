import h5py
import keras
import numpy as np
from recording import record

rng = np.random.default_rng(0)
with h5py.File("train.h5", "w") as file:
    file["x"] = rng.random((40, 4)).astype("float32")
    file["y"] = rng.random((40, 1)).astype("float32")
with h5py.File("train.h5") as file:
    x, y = file["x"][:], file["y"][:]
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
record(weights=model.get_weights())
