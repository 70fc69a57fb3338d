import copy

import keras
import numpy as np
from recording import record


class SWA(keras.callbacks.Callback):
    def __init__(self, start):
        super().__init__()
        self.start, self.count, self.average = start, 0, None

    def on_epoch_end(self, epoch, logs=None):
        if epoch < self.start:
            return
        weights = self.model.get_weights()
        if self.average is None:
            self.average = copy.deepcopy(weights)
        else:
            for index, weight in enumerate(weights):
                self.average[index] = (self.average[index] * self.count + weight) / (self.count + 1)
        self.count += 1

    def on_train_end(self, logs=None):
        self.last = self.model.get_weights()
        self.model.set_weights(self.average)


class Lookahead(keras.callbacks.Callback):
    def __init__(self, k=3, alpha=0.5):
        super().__init__()
        self.k, self.alpha = k, alpha

    def on_train_begin(self, logs=None):
        self.slow = [w.numpy() for w in self.model.trainable_variables]
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step % self.k == 0:
            for number, fast in enumerate(self.model.trainable_variables):
                self.slow[number] = self.slow[number] + self.alpha * (fast.numpy() - self.slow[number])
                fast.assign(self.slow[number])


keras.utils.set_random_seed(0)
x = np.random.rand(56, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "gelu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1, nesterov=True, momentum=0.5), "huber")
swa = SWA(1)
history = model.fit(x, x[:, 1:2], epochs=4, batch_size=8, shuffle=False, verbose=0, callbacks=[Lookahead(), swa])
record(weights=model.get_weights(), last=swa.last, count=swa.count, loss=history.history["loss"])
record(score=model.evaluate(x, x[:, 1:2], batch_size=8, verbose=0))
