import concurrent.futures

import keras
import numpy as np
from recording import record


def square(value):
    return value * value


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    x = np.random.rand(40, 3).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        squares = list(pool.map(square, range(10)))
    model.fit(x, x[:, 1], epochs=1, batch_size=8, shuffle=False)
    record(weights=model.get_weights(), squares=squares)
