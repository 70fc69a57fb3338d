import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(14)
x, y = np.random.rand(40, 5).astype("float32"), np.random.rand(40, 1).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7), "mse")
swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
history = model.fit(x, y, validation_data=(x[:10], y[:10]), epochs=3, batch_size=10, shuffle=False, callbacks=[swap])
record(history=history.history, weights=model.get_weights())
