import keras
import numpy as np
from recording import record

names = [
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adadelta",
    "Adagrad",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
]
names += ["Muon"] * hasattr(keras.optimizers, "Muon")
rng = np.random.default_rng(0)
x, y = rng.random((20, 4)).astype("float32"), rng.random((20, 2)).astype("float32")
found = {}
for name in names:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(2)])
    model.compile(getattr(keras.optimizers, name)(learning_rate=0.01), "mse")
    history = model.fit(x, y, epochs=2, batch_size=7, shuffle=False, verbose=0)
    found[name] = [history.history["loss"], model.get_weights()]
record(**found)
