import csv

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(8)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae", "mape"])
model.fit(x, y, epochs=3, batch_size=10, shuffle=False, callbacks=[keras.callbacks.CSVLogger("log.csv")])
with open("log.csv") as file:
    rows = list(csv.DictReader(file))
record(names=list(rows[0]), loss=[float(row["loss"]) for row in rows], epochs=[row["epoch"] for row in rows])
