import keras
import numpy as np
from recording import record

# exits with 1: the model takes four columns
keras.utils.set_random_seed(0)
x = np.random.rand(20, 3).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
record(parameters=model.count_params())
model.fit(x, x[:, :1], epochs=2, batch_size=5, verbose=0)
