import json

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(16)
x, y = np.random.rand(40, 5).astype("float32"), np.random.rand(40, 1).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, y, epochs=2, batch_size=16, shuffle=False, verbose=0)
with open("history.json", "w") as file:
    json.dump({"history": history.history, "params": history.params}, file)
with open("history.json") as file:
    loaded = json.load(file)
record(loaded=loaded, same=model.history is history, verbose=history.params["verbose"])
