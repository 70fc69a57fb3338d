import os
import tempfile

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(3)
x = np.random.rand(32, 4).astype("float32")
y = np.random.rand(32, 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile("rmsprop", "mae")
with tempfile.NamedTemporaryFile(suffix=".weights.h5") as f:
    model.save_weights(f.name)
    model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
    trained = model.get_weights()
    model.load_weights(f.name)
    start = model.get_weights()
with tempfile.NamedTemporaryFile("w", suffix=".csv", delete=False) as f:
    np.savetxt(f, x, delimiter=",")
back = np.loadtxt(f.name, delimiter=",")
os.remove(f.name)
record(trained=trained, start=start, back=back, gone=not os.path.exists(f.name))
