import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(30, 3)
y = np.random.randint(0, 2, 30).astype("int8")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy", metrics=["accuracy", "AUC"])
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, validation_data=(x[:9], y[:9]), validation_freq=2)
record(history=history.history, weights=model.get_weights())
