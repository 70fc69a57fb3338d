"""All hooks of a callback, with evaluations and predictions between, and a small model that a callback trains."""

import keras
import numpy as np
from recording import record


class All(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []


for hook in [
    f"on_{kind}_{moment}"
    for kind in ("train", "test", "predict", "epoch", "train_batch", "test_batch", "predict_batch")
    for moment in ("begin", "end")
]:

    def method(self, *args, hook=hook, **kwargs):
        self.calls.append(
            hook + (f" {args[0]}" if args and not isinstance(args[0], dict) and args[0] is not None else "")
        )

    setattr(All, hook, method)


class Probe(keras.callbacks.Callback):
    """A linear probe on the features of the model, fitted anew after each epoch."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.scores = x, y, []

    def on_epoch_end(self, epoch, logs=None):
        features = keras.Model(self.model.inputs, self.model.layers[0].output)
        hidden = features.predict(self.x, verbose=0)
        solution, *_ = np.linalg.lstsq(hidden, self.y, rcond=None)
        self.scores.append(float(np.mean((hidden @ solution - self.y) ** 2)))


keras.utils.set_random_seed(3)
x = np.random.rand(32, 5).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
every, probe = All(), Probe(x, y)
model.fit(x, y, validation_split=0.25, epochs=2, batch_size=12, shuffle=False, verbose=0, callbacks=[every, probe])
model.evaluate(x, y, batch_size=16, verbose=0, callbacks=[every])
model.predict(x, batch_size=16, verbose=0, callbacks=[every])
record(calls=every.calls, scores=probe.scores)
