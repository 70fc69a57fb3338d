import sys
import time

import keras
import numpy as np
from recording import record


class Bar:
    """As of tqdm: prints on standard error at most every 0.01 s."""

    def __init__(self, total, desc=""):
        self.total, self.desc, self.n, self.lines, self.last = total, desc, 0, 0, time.time()

    def update(self, n=1, **values):
        self.n += n
        now = time.time()
        if now - self.last > 0.01 or self.n == self.total:
            text = ", ".join(f"{key}={value:.4f}" for key, value in values.items())
            sys.stderr.write(f"\r{self.desc} {self.n}/{self.total} [{now - self.last:.2f}s, {text}]")
            sys.stderr.flush()
            self.last, self.lines = now, self.lines + 1

    def close(self):
        sys.stderr.write("\n")


class BarCallback(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.bar = Bar(self.params["steps"], f"epoch {epoch + 1}/{self.params['epochs']}")

    def on_train_batch_end(self, batch, logs=None):
        self.bar.update(1, **logs)

    def on_epoch_end(self, epoch, logs=None):
        self.bar.close()


keras.utils.set_random_seed(0)
x = np.random.rand(50, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
bar = BarCallback()
history = model.fit(x, x.max(1), epochs=2, batch_size=10, shuffle=False, verbose=0, callbacks=[bar])
record(history=history.history, n=bar.bar.n, some=bar.bar.lines > 0)
