import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(x[:, :3], x[:, 0], epochs=1, batch_size=8, shuffle=False, verbose=0)
    worked = True
except Exception:
    worked = False
history = model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False, verbose=0)
record(worked=worked, loss=history.history["loss"])
