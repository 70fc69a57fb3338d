import keras
import numpy as np
from recording import record


class StochasticWeightAverage(keras.callbacks.Callback):
    def __init__(self, start):
        super().__init__()
        self.start, self.count, self.average = start, 0, None

    def on_epoch_end(self, epoch, logs=None):
        if epoch < self.start:
            return
        weights = self.model.get_weights()
        self.count += 1
        if self.average is None:
            self.average = weights
        else:
            self.average = [a + (w - a) / self.count for a, w in zip(self.average, weights)]

    def on_train_end(self, logs=None):
        self.model.set_weights(self.average)


keras.utils.set_random_seed(18)
x, y = np.random.rand(64, 4).astype("float32"), np.random.rand(64, 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
model.fit(x, y, epochs=4, batch_size=16, shuffle=False, callbacks=[StochasticWeightAverage(2)])
record(weights=model.get_weights(), evaluated=model.evaluate(x, y))
