import json
import time

import keras
import numpy as np
from recording import record


class BestEver(keras.callbacks.Callback):
    """Keeps the best weights in memory, writes a line of JSON, and slows the rate when nothing improves."""

    def __init__(self):
        super().__init__()
        self.best, self.weights, self.bad = np.inf, None, 0

    def on_train_begin(self, logs=None):
        self.started = time.time()
        self.file = open("log.jsonl", "w")

    def on_epoch_end(self, epoch, logs=None):
        rate = float(self.model.optimizer.learning_rate)
        self.file.write(json.dumps({"epoch": epoch, "rate": rate, **{k: float(v) for k, v in logs.items()}}) + "\n")
        if logs["val_loss"] < self.best - 1e-3:
            self.best, self.weights, self.bad = logs["val_loss"], self.model.get_weights(), 0
        else:
            self.bad += 1
            self.model.optimizer.learning_rate = rate / 2

    def on_train_end(self, logs=None):
        self.file.close()
        self.model.set_weights(self.weights)


class Skip(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            self.model.get_layer("head").trainable = True

    def on_test_batch_end(self, batch, logs=None):
        self.model.seen = getattr(self.model, "seen", 0) + 1


keras.utils.set_random_seed(16)
x = np.random.rand(50, 4).astype("float32")
y = (x[:, :1] > 0.5).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "selu"), keras.layers.Dense(1, name="head")])
model.compile(keras.optimizers.Adam(0.1), keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
callbacks = [
    BestEver(),
    Skip(),
    keras.callbacks.ReduceLROnPlateau(patience=1, monitor="loss", factor=0.7),
    keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
    keras.callbacks.CSVLogger("log.csv"),
]
history = model.fit(x, y, epochs=6, batch_size=8, shuffle=False, validation_split=0.2, callbacks=callbacks, verbose=0)
lines = [json.loads(line) for line in open("log.jsonl")]
with open("log.csv") as file:
    rows = len(file.readlines())
record(history=history.history, lines=lines, rows=rows, seen=model.seen, weights=model.get_weights())
