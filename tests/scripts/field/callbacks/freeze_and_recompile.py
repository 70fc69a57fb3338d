import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(13)
x, y = np.random.rand(40, 5).astype("float32"), np.random.rand(40, 1).astype("float32")
base = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(4, "relu")])
base.trainable = False
model = keras.Sequential([base, keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
first = model.fit(x, y, epochs=2, batch_size=10, shuffle=False)
base.trainable = True
base.layers[0].trainable = False
model.compile(keras.optimizers.Adam(0.001), "mse")
second = model.fit(x, y, initial_epoch=2, epochs=4, batch_size=10, shuffle=False)
record(first=first.history, second=second.history, epochs=second.epoch, weights=model.get_weights())
