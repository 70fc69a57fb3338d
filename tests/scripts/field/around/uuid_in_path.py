import time
import uuid

import keras
import numpy as np
from recording import record

# refused on two workers: names a file run-
keras.utils.set_random_seed(0)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
run = time.strftime("run-%H%M%S-") + uuid.uuid4().hex
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
best = keras.callbacks.ModelCheckpoint(f"{run}/best.weights.h5", "loss", save_best_only=True, save_weights_only=True)
model.fit(x, y, epochs=3, batch_size=10, shuffle=False, callbacks=[best])
model.load_weights(f"{run}/best.weights.h5")
record(weights=model.get_weights())
