import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.normal(size=(80, 5)).astype("float32")
y = np.sin(x.sum(1, keepdims=True))
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.3), "mse")
stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True, verbose=1)
model.fit(x, y, validation_split=0.25, epochs=8, batch_size=20, shuffle=False, callbacks=[stop])
again = model.fit(x, y, epochs=stop.best_epoch + 1, batch_size=20, shuffle=False)
record(best=stop.best, stopped=stop.stopped_epoch, best_epoch=stop.best_epoch, loss=again.history["loss"])
