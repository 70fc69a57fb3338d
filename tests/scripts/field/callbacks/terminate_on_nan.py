import keras
import numpy as np
from recording import record

x = np.full((20, 2), 1e20, "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(1e10), "mse")
callbacks = [keras.callbacks.TerminateOnNaN()]
history = model.fit(x, x[:, :1], epochs=3, batch_size=5, shuffle=False, callbacks=callbacks)
record(epochs=len(history.epoch))
