import keras
import numpy as np
from recording import record

STEP = 0
SETTINGS = {"dropped": []}


class Count(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        global STEP
        STEP += 1
        if STEP == 6:
            SETTINGS["dropped"].append(batch)
            kernel = self.model.layers[0].kernel
            kernel.assign(keras.ops.where(keras.ops.abs(kernel) < 0.1, 0.0, kernel))


keras.utils.set_random_seed(12)
x, y = np.random.rand(40, 5).astype("float32"), np.random.rand(40, 2).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "relu"), keras.layers.Dense(2)])
model.compile("adam", "mse")
model.fit(x, y, epochs=3, batch_size=10, shuffle=False, callbacks=[Count()])
record(step=STEP, settings=SETTINGS, weights=model.get_weights())
