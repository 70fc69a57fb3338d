import sys

import keras
import numpy as np
from recording import record


# exits
class Guard(keras.callbacks.Callback):
    """Leaves the program, as jobs do whose time is over."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.model.save("last.keras")
            with open("exit.txt", "w") as f:
                f.write(f"epoch {epoch}")
            print("time is over")
            sys.exit(7)


keras.utils.set_random_seed(0)
x = np.random.rand(30, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
try:
    model.fit(x, x[:, 0], epochs=5, batch_size=10, shuffle=False, callbacks=[Guard()])
finally:
    again = keras.models.load_model("last.keras")
    record(text=open("exit.txt").read(), weights=again.get_weights())
