import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
table = {"a": list(range(40)), "b": [value % 7 for value in range(40)]}
x = np.array([table["a"], table["b"]], dtype="float64").T
y = (x[:, 0] * 0.1 + x[:, 1]).tolist()
model = keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mean_absolute_error")
history = model.fit(x, np.array(y), validation_split=0.3, epochs=2, batch_size=9, shuffle=False, verbose=0)
record(history=history.history)
