import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(1)
x = np.random.normal(size=(64, 6)).astype("float32")
y = x @ np.random.normal(size=(6, 1)).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
losses = []
collect = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, callbacks=[collect])
print(losses[-1])
record(losses=losses, params=history.params, epoch=history.epoch, weights=model.get_weights())
