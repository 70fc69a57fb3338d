import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
model.quantize("int8")
predicted = model.predict(x)
record(near=bool(np.isfinite(predicted).all()), shape=predicted.shape)
