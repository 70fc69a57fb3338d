import keras
import numpy as np
from recording import record


class RateFinder(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.rates, self.losses = [], []
        self.saved = self.model.get_weights()
        self.model.optimizer.learning_rate = 1e-4

    def on_train_batch_end(self, batch, logs=None):
        rate = float(self.model.optimizer.learning_rate)
        self.rates.append(rate)
        self.losses.append(logs["loss"])
        self.model.optimizer.learning_rate = rate * 2
        if logs["loss"] > 50 or rate > 10:
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        self.model.set_weights(self.saved)


keras.utils.set_random_seed(11)
x = np.random.rand(400, 4).astype("float32")
y = x.sum(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
finder = RateFinder()
model.fit(x, y, epochs=2, batch_size=10, shuffle=False, verbose=0, callbacks=[finder])
best = finder.rates[int(np.argmin(finder.losses))]
model.optimizer.learning_rate = best / 4
history = model.fit(x, y, epochs=1, batch_size=10, shuffle=False)
record(rates=finder.rates, losses=finder.losses, final=history.history["loss"])
