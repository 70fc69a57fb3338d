import os
import tempfile

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
path = tempfile.mkdtemp()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, epochs=2, batch_size=10, shuffle=False)
model.save(os.path.join(path, "model.keras"))
loaded = keras.models.load_model(os.path.join(path, "model.keras"))
record(predicted=loaded.predict(x), files=os.listdir(path))
