import keras
import numpy as np
from recording import record


class StopAtLoss(keras.callbacks.Callback):
    best = None

    def on_epoch_end(self, epoch, logs=None):
        logs["best"] = min(logs["loss"], self.best or 9.0)
        self.best = logs["best"]
        if logs["loss"] < 0.2:
            print(f"loss {logs['loss']:.3f} is low enough")
            self.stopped_at = epoch
            self.model.stop_training = True


keras.utils.set_random_seed(17)
x = np.random.rand(64, 4).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.02), "mse")
stop = StopAtLoss()
history = model.fit(x, y, epochs=30, batch_size=16, shuffle=False, verbose=0, callbacks=[stop])
record(history=history.history, at=stop.stopped_at, best=stop.best)
