import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 6).astype("float64"), np.random.rand(40, 1).astype("float64")
keras.config.set_floatx("float64")
layers = [keras.layers.Dense(5, use_bias=False), keras.layers.BatchNormalization(synchronized=True)]
model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.ReLU(), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, y, validation_data=(x[:9], y[:9]), epochs=3, batch_size=16, shuffle=False)
record(history=history.history, weights=model.get_weights())
