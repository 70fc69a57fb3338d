import glob

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(8)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard("logs", histogram_freq=1, write_graph=False)
history = model.fit(x, y, validation_data=(x, y), epochs=2, batch_size=10, shuffle=False, callbacks=[board])
record(history=history.history, files=len(glob.glob("logs/**/*tfevents*", recursive=True)))
