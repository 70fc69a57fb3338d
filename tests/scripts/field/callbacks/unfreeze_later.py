import keras
import numpy as np
from recording import record


class Anneal(keras.callbacks.Callback):
    """A loss weight, a dropout rate and a rate that change by epoch."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.log = weight, []

    def on_epoch_begin(self, epoch, logs=None):
        self.weight.assign(1.0 / (1 + epoch))
        self.model.optimizer.learning_rate.assign(0.1 / (1 + epoch))
        self.log.append([float(self.weight), float(self.model.optimizer.learning_rate)])


keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
weight = keras.Variable(1.0, trainable=False)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(1)])
model.compile("sgd", lambda y, p: weight * keras.ops.mean(keras.ops.abs(y - p[:, 0])))
anneal = Anneal(weight)
history = model.fit(x, x[:, 0], epochs=3, batch_size=10, shuffle=False, callbacks=[anneal])
record(history=history.history, log=anneal.log, weights=model.get_weights())
