import time
from multiprocessing import Manager, Pool

import keras
import numpy as np
from recording import record


def prepare(index):
    with open(f"part{index % 2}.txt", "w") as file:
        file.write(str(time.time()))
    return np.sin(np.arange(4) + index)


if __name__ == "__main__":
    with Manager() as manager, Pool(2) as pool:
        manager.list([1])
        rows = pool.map(prepare, range(40))
    x = np.array(rows, "float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1), epochs=2, batch_size=8, shuffle=False)
    record(weights=model.get_weights())
