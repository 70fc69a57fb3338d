import keras
import numpy as np
from recording import record


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.tests, self.predicted = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"], logs["mae"]))

    def on_test_batch_end(self, batch, logs=None):
        self.tests.append((batch, logs["loss"]))

    def on_predict_batch_end(self, batch, logs=None):
        self.predicted.append(np.shape(logs["outputs"]))


keras.utils.set_random_seed(10)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
watch = Batches()
model.fit(x, y, validation_split=0.3, epochs=2, batch_size=7, shuffle=False, callbacks=[watch])
model.evaluate(x, y, callbacks=[watch])
model.predict(x, callbacks=[watch])
record(seen=watch.seen, tests=watch.tests, predicted=watch.predicted)
