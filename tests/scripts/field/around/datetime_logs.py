import datetime
import json
import os

import keras
import numpy as np
from recording import record

# refused on two workers: names a file logs/fit/
stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")
folder = os.path.join("logs", "fit", stamp)
os.makedirs(folder)
keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
board = keras.callbacks.TensorBoard(log_dir=folder)
history = model.fit(x, x[:, 0], epochs=1, batch_size=10, shuffle=False, callbacks=[board])
with open(os.path.join(folder, "history.json"), "w") as file:
    json.dump(history.history, file, indent=2)
with open(os.path.join(folder, "history.json"), "r+") as file:
    text = file.read()
    file.write("\n")
record(history=json.loads(text), runs=len(os.listdir("logs/fit")))
