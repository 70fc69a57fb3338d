import keras
import numpy as np
from recording import record


def batches(seed):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.random((12, 4)).astype("float32")
        yield x, x.sum(1, keepdims=True)


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
options = {"steps_per_epoch": 5, "epochs": 4, "validation_steps": 2, "verbose": 0}
history = model.fit(batches(0), validation_data=batches(1), **options)
record(history=history.history, weights=model.get_weights())
