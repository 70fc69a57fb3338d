"""The learning rate finder of many courses: weights are saved and restored, the rate grows with each batch."""

import os
import tempfile

import keras
import numpy as np
from recording import record


class LRFinder:
    def __init__(self, model, stop_factor=4.0, beta=0.98):
        self.model, self.stop_factor, self.beta = model, stop_factor, beta
        self.lrs, self.losses = [], []
        self.avg, self.best, self.number = 0.0, 1e9, 0

    def on_batch_end(self, batch, logs):
        lr = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.lrs.append(lr)
        self.number += 1
        self.avg = self.beta * self.avg + (1 - self.beta) * logs["loss"]
        smooth = self.avg / (1 - self.beta**self.number)
        self.losses.append(smooth)
        if self.number > 1 and smooth > self.stop_factor * self.best:
            self.model.stop_training = True
            return
        if self.number == 1 or smooth < self.best:
            self.best = smooth
        self.model.optimizer.learning_rate = lr * self.factor

    def find(self, x, y, start=1e-4, end=10.0, batch_size=8, epochs=4):
        steps = epochs * int(np.ceil(len(x) / batch_size))
        self.factor = (end / start) ** (1 / steps)
        handle, path = tempfile.mkstemp(suffix=".weights.h5")
        os.close(handle)
        self.model.save_weights(path)
        before = float(self.model.optimizer.learning_rate.numpy())
        self.model.optimizer.learning_rate = start
        callback = keras.callbacks.LambdaCallback(on_batch_end=None, on_train_batch_end=self.on_batch_end)
        self.model.fit(x, y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0, callbacks=[callback])
        self.model.load_weights(path)
        os.remove(path)
        self.model.optimizer.learning_rate = before


keras.utils.set_random_seed(3)
x = np.random.rand(64, 4).astype("float32")
y = x @ np.array([[1.0], [-2.0], [3.0], [0.5]], "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
start = model.get_weights()
finder = LRFinder(model)
finder.find(x, y)
record(same=all(np.array_equal(a, b) for a, b in zip(start, model.get_weights(), strict=True)))
record(lrs=finder.lrs, losses=finder.losses)
rate = finder.lrs[int(np.argmin(finder.losses))] / 10
model.optimizer.learning_rate = rate
record(loss=model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"], rate=rate)
