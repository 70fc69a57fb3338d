import logging

import keras
import numpy as np
from recording import record

logging.basicConfig(filename="experiment.log", level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
log = logging.getLogger(__name__)
log.info("start")
keras.utils.set_random_seed(7)
x = np.random.normal(size=(40, 3)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
for run in range(2):
    history = model.fit(x, y, epochs=2, batch_size=10, shuffle=False, verbose=0)
    log.info("run %d: loss=%s", run, history.history["loss"][-1])
    log.warning("accuracy %.3f", history.history["accuracy"][-1])
with open("experiment.log") as f:
    lines = [line for line in f if "loss=" in line or "accuracy" in line or "start" in line]
record(count=len(lines), losses=[float(line.rsplit("=", 1)[1]) for line in lines if "loss=" in line])
