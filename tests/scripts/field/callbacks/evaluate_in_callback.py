import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(4)
x, y = np.random.rand(40, 3).astype("float32"), np.random.rand(40, 1).astype("float32")
test_x, test_y = x[:13] + 0.1, y[:13]


class Test(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.scores, self.predictions = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.scores.append(self.model.evaluate(test_x, test_y, verbose=0, return_dict=True))
        self.predictions.append(self.model.predict(test_x[:3], verbose=0))


test = Test()
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)])
model.compile("rmsprop", "mse", metrics=["mae"])
history = model.fit(x, y, epochs=3, batch_size=8, shuffle=False, callbacks=[test])
record(scores=test.scores, predictions=test.predictions, history=history.history)
