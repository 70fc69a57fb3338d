import csv
import math

import keras
import numpy as np
from keras import ops
from recording import record


class CyclicLR(keras.callbacks.Callback):
    """As of Brad Kenstler, for a triangular policy."""

    def __init__(self, base_lr=0.001, max_lr=0.02, step_size=5.0, mode="triangular2"):
        super().__init__()
        self.base_lr, self.max_lr, self.step_size, self.mode = base_lr, max_lr, step_size, mode
        self.clr_iterations = self.trn_iterations = 0.0
        self.history = {}

    def clr(self):
        cycle = math.floor(1 + self.clr_iterations / (2 * self.step_size))
        x = abs(self.clr_iterations / self.step_size - 2 * cycle + 1)
        return self.base_lr + (self.max_lr - self.base_lr) * max(0, 1 - x) / 2.0 ** (cycle - 1)

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate.assign(self.base_lr if self.clr_iterations == 0 else self.clr())

    def on_batch_end(self, epoch, logs=None):
        self.trn_iterations += 1
        self.clr_iterations += 1
        self.history.setdefault("lr", []).append(float(ops.convert_to_numpy(self.model.optimizer.learning_rate)))
        self.history.setdefault("iterations", []).append(self.trn_iterations)
        for key, value in (logs or {}).items():
            self.history.setdefault(key, []).append(value)
        self.model.optimizer.learning_rate.assign(self.clr())


keras.utils.set_random_seed(2)
x, y = np.random.rand(60, 4).astype("float32"), np.random.randint(0, 2, 60)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(momentum=0.9), loss, metrics=["accuracy"])
cyclic = CyclicLR()
logger = keras.callbacks.CSVLogger("log.csv", separator=";")
model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0, callbacks=[logger, cyclic])
model.fit(x, y, batch_size=10, epochs=2, shuffle=False, verbose=0, callbacks=[cyclic])
with open("log.csv") as f:
    rows = list(csv.DictReader(f, delimiter=";"))
record(history=cyclic.history, names=list(rows[0]), loss=[float(row["loss"]) for row in rows])
