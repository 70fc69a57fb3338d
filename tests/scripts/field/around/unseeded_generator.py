import keras
import numpy as np
from recording import record

# draws: the data of each start differ
rng = np.random.default_rng()
x = rng.random((64, 4)).astype("float32")
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, x.mean(1), epochs=2, batch_size=16, shuffle=False)
record(loss=history.history["loss"])
