import os
import shutil

import keras
import numpy as np
from recording import record

OUT = "results"
for _ in range(2):
    if os.path.exists(OUT):
        shutil.rmtree(OUT)
    os.makedirs(OUT)
    keras.utils.set_random_seed(0)
    x = np.random.rand(30, 4).astype("float32")
    np.save(os.path.join(OUT, "x.npy"), x)
    x = np.load(os.path.join(OUT, "x.npy"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(x, x[:, 0], epochs=1, batch_size=10, shuffle=False)
    with open(os.path.join(OUT, "log.txt"), "w") as file:
        file.write(str(history.history["loss"][0]))
with open(os.path.join(OUT, "log.txt")) as file:
    record(loss=float(file.read()), files=sorted(os.listdir(OUT)))
