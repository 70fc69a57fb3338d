import keras
import numpy as np
from recording import record


class Noisy(keras.utils.PyDataset):
    """Its own noise goes down by itself, and its order changes."""

    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.noise, self.order = x, y, 1.0, np.arange(len(x))

    def __len__(self):
        return len(self.x) // 10

    def __getitem__(self, index):
        rows = self.order[10 * index : 10 * index + 10]
        return self.x[rows] + self.noise, self.y[rows]

    def on_epoch_end(self):
        self.noise *= 0.5
        self.order = np.roll(self.order, 3)


keras.utils.set_random_seed(0)
x = np.random.rand(50, 4).astype("float32")
data = Noisy(x, x.mean(1))
valid = Noisy(x[:20], x[:20].mean(1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(data, validation_data=valid, epochs=3, shuffle=False)
scores = model.evaluate(valid)
record(history=history.history, noise=data.noise, scores=scores, valid=valid.noise, order=data.order)
