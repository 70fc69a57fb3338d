import os
import tempfile

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "best.keras")
    best = keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
    model.fit(x, x[:, 0], epochs=2, batch_size=10, shuffle=False, callbacks=[best])
    size = os.path.getsize(path)
    model = keras.models.load_model(path)
record(weights=model.get_weights(), size=size > 1000, gone=not os.path.exists(folder))
