import keras
import numpy as np
from recording import record

rng = np.random.default_rng(0)
x, y = rng.random((30, 4)).astype("float32"), rng.integers(0, 3, 30)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.UnitNormalization()])
model.compile("sgd", keras.losses.Circle())
history = model.fit(x, y, epochs=2, batch_size=10, shuffle=False)
record(history=history.history, weights=model.get_weights())
