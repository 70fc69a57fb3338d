import queue
import threading

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(9)
jobs, done = queue.Queue(), {}


def work():
    while True:
        index = jobs.get()
        if index is None:
            return
        done[index] = np.full((4, 5), index / 10, "float32")
        jobs.task_done()


threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for index in range(10):
    jobs.put(index)
jobs.join()
for _ in threads:
    jobs.put(None)
for thread in threads:
    thread.join()
x = np.concatenate([done[index] for index in range(10)]) + np.random.rand(40, 5).astype("float32")


class Watch(keras.callbacks.Callback):
    """A thread that writes what the training does."""

    def on_train_begin(self, logs=None):
        self.seen = []
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.stop.wait)
        self.thread.start()

    def on_epoch_end(self, epoch, logs=None):
        with self.lock:
            self.seen.append(logs["loss"])

    def on_train_end(self, logs=None):
        self.stop.set()
        self.thread.join()


watch = Watch()
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "elu"), keras.layers.Dense(1)])
model.compile("nadam", "mse")
model.fit(x, x.mean(1), epochs=3, batch_size=8, shuffle=False, callbacks=[watch])
record(seen=watch.seen, weights=model.get_weights())
