import itertools

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(48, 4).astype("float32")
y = np.random.randint(0, 2, 48)


def build(units, rate):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


results = {}
for units, rate in itertools.product([4, 8], [0.1, 0.01]):
    keras.utils.set_random_seed(1)
    history = build(units, rate).fit(x, y, validation_split=0.25, epochs=2, batch_size=12, shuffle=False, verbose=0)
    results[f"{units} {rate}"] = history.history["val_loss"][-1]
best = min(results, key=results.get)
print("best:", best)
record(results=results, best=best)
