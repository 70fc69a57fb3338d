"""After each epoch the hardest examples are added to the data of the next fit."""

import collections
import random

import keras
import numpy as np
from recording import record


class Hardest(keras.callbacks.Callback):
    def __init__(self, x, y, keep=6):
        super().__init__()
        self.x, self.y, self.memory = x, y, collections.deque(maxlen=keep)
        self.counts = collections.Counter()

    def on_epoch_end(self, epoch, logs=None):
        errors = np.abs(self.model.predict(self.x, batch_size=16, verbose=0)[:, 0] - self.y)
        for index in np.argsort(errors)[-3:]:
            self.memory.append(int(index))
            self.counts[int(index)] += 1


random.seed(1)
keras.utils.set_random_seed(1)
x = np.random.rand(40, 3).astype("float32")
y = np.sin(x.sum(1) * 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
hardest, losses = Hardest(x, y), []
for round in range(3):
    extra = list(hardest.memory)
    rows = list(range(len(x))) + extra
    random.shuffle(rows)
    losses += model.fit(
        x[rows], y[rows], epochs=2, batch_size=10, shuffle=False, verbose=0, callbacks=[hardest]
    ).history["loss"]
record(losses=losses, memory=list(hardest.memory), counts=sorted(hardest.counts.items()))
