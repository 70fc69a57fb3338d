import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(9)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05), "mse")
rates = []


def schedule(epoch, rate):
    rates.append(rate)
    return rate if epoch < 2 else rate * 0.5


callbacks = [
    keras.callbacks.LearningRateScheduler(schedule, verbose=1),
    keras.callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=1.0),
]
history = model.fit(x, y, epochs=5, batch_size=10, shuffle=False, callbacks=callbacks)
record(history=history.history, rates=rates)
