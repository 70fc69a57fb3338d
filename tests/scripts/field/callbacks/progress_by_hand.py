import keras
import numpy as np
from recording import record


class Printer(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.seen = {"batches": 0}

    def on_train_batch_end(self, batch, logs=None):
        self.seen["batches"] += 1

    def on_epoch_end(self, epoch, logs=None):
        with open("progress.txt", "a") as file:
            print(epoch, self.seen["batches"], f"{logs['loss']:.4f}", file=file)


keras.utils.set_random_seed(0)
x = np.random.rand(30, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, 0], epochs=3, batch_size=10, shuffle=False, verbose=0, callbacks=[Printer()])
with open("progress.txt") as file:
    lines = file.read().splitlines()
record(lines=[[float(word) for word in line.split()] for line in lines])
