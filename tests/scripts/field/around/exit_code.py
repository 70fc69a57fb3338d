import sys

import keras
import numpy as np
from recording import record

# exits with 3
keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
record(loss=history.history["loss"])
if history.history["loss"][0] > 0:
    sys.exit(3)
