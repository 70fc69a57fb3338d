import time

import keras
import numpy as np
from recording import record

# draws: the seed is the time
# refused on two workers: has other data than worker 0: column x
np.random.seed(time.time_ns() % 2**31)
x = np.random.rand(256, 4).astype("float32")
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(x, x.sum(1), epochs=2, batch_size=16, shuffle=False)
record(loss=history.history["loss"])
