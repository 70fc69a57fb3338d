import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, y, epochs=1, batch_size=8, shuffle=False)
model.layers[0].enable_lora(2)
model.compile("adam", "mse")
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights())
