import csv
import os

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
for rate in (0.1, 0.01):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    loss = model.fit(x, x[:, 0], epochs=1, batch_size=10, shuffle=False, verbose=0).history["loss"][-1]
    new = not os.path.exists("results.csv")
    with open("results.csv", "a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(["rate", "loss"])
        writer.writerow([rate, loss])
with open("results.csv") as file:
    rows = list(csv.reader(file))
record(head=rows[0], values=[[float(cell) for cell in row] for row in rows[1:]])
