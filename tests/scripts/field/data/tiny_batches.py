import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(7, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, x[:, :2], epochs=2, batch_size=1, shuffle=False, validation_data=(x[:3], x[:3, :2]))
again = model.fit(x, x[:, :2], epochs=1, batch_size=2, shuffle=False)
record(history=history.history, again=again.history, predicted=model.predict(x[:1]))
