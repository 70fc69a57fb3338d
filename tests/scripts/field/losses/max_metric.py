import keras
import numpy as np
from keras import ops
from recording import record


class MaxError(keras.metrics.Metric):
    def __init__(self, name="max_error"):
        super().__init__(name=name)
        self.largest = self.add_weight(name="largest", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y_true - y_pred))))

    def result(self):
        return self.largest + 0.0


def batch_r2(y_true, y_pred):
    return 1 - ops.sum((y_true - y_pred) ** 2) / ops.sum((y_true - ops.mean(y_true)) ** 2)


keras.utils.set_random_seed(0)
x, y = np.random.rand(27, 3).astype("float32"), np.random.rand(27, 1).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=[MaxError(), batch_r2])
history = model.fit(x, y, validation_split=0.3, epochs=2, batch_size=8, shuffle=False)
record(history=history.history)
