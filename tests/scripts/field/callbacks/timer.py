import time

import keras
import numpy as np
from recording import record


class Timer(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.start = time.time()
        self.epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1
        self.took = time.time() - self.start


rng = np.random.default_rng(0)
x, y = rng.random((48, 4)).astype("float32"), rng.integers(0, 3, 48)
keras.utils.set_random_seed(2)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
timer = Timer()
model.fit(x, y, epochs=2, batch_size=12, shuffle=False, verbose=2, callbacks=[timer])
print(f"{time.time() - timer.start:.1f} s")
record(epochs=timer.epochs, positive=timer.took > 0, weights=model.get_weights())
