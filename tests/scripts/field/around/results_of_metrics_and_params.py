import json

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(3)
x = np.random.rand(50, 4).astype("float32")
y = (x.sum(1) > 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(name="auc")])
history = model.fit(x, y, epochs=2, batch_size=10, validation_split=0.2, shuffle=False, verbose=0)
final = {name: float(value) for name, value in model.get_metrics_result().items()}
with open("history.json", "w") as file:
    json.dump({"history": history.history, "params": history.params, "epoch": history.epoch}, file)
with open("history.json") as file:
    record(loaded=json.load(file), final=final, names=model.metrics_names, same=model.history is history)
model.reset_metrics()
record(after=model.evaluate(x[:7], y[:7], batch_size=3, verbose=0, return_dict=True))
