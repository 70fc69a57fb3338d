import atexit
import concurrent.futures
import sys
import threading
import time

import keras
import numpy as np
from recording import record

# exits with 3
keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False, verbose=0)
order = []


def saved(name):
    order.append(name)
    with open("log.txt", "a") as file:
        file.write(f"{name}\n")


def late():
    time.sleep(0.3)
    order.append("thread")


atexit.register(lambda: record(order=order, lines=open("log.txt").read().split()))  # noqa: SIM115
atexit.register(saved, name="first")
atexit.register(saved, "second")
atexit.register(order.append, "never")
atexit.unregister(order.append)
pool = concurrent.futures.ThreadPoolExecutor(2)
pool.submit(time.sleep, 0.1)
threading.Thread(target=late).start()
sys.exit(3)
