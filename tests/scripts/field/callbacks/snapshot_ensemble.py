import math
import os

import keras
import numpy as np
from recording import record


class SnapshotEnsemble(keras.callbacks.Callback):
    def __init__(self, n_epochs, n_cycles, lrate_max, folder):
        super().__init__()
        self.epochs, self.cycles, self.lr_max, self.folder = n_epochs, n_cycles, lrate_max, folder
        self.lrates = []

    def cosine_annealing(self, epoch):
        per_cycle = math.floor(self.epochs / self.cycles)
        return self.lr_max / 2 * (math.cos(math.pi * (epoch % per_cycle) / per_cycle) + 1)

    def on_epoch_begin(self, epoch, logs=None):
        lr = self.cosine_annealing(epoch)
        self.model.optimizer.learning_rate = lr
        self.lrates.append(lr)

    def on_epoch_end(self, epoch, logs=None):
        per_cycle = math.floor(self.epochs / self.cycles)
        if epoch != 0 and (epoch + 1) % per_cycle == 0:
            name = os.path.join(self.folder, f"snapshot_model_{(epoch + 1) // per_cycle}.keras")
            self.model.save(name)
            print(f">saved snapshot {name}, epoch {epoch}")


keras.utils.set_random_seed(1)
x = np.random.randn(60, 2).astype("float32")
y = keras.utils.to_categorical((x[:, 0] > 0).astype(int) + (x[:, 1] > 0))
os.makedirs("snapshots", exist_ok=True)
model = keras.Sequential()
model.add(keras.layers.Dense(12, input_shape=(2,), activation="relu"))
model.add(keras.layers.Dense(3, activation="softmax"))
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.SGD(momentum=0.9), metrics=["accuracy"])
callback = SnapshotEnsemble(6, 3, 0.1, "snapshots")
model.fit(
    x[:48],
    y[:48],
    validation_data=(x[48:], y[48:]),
    epochs=6,
    batch_size=12,
    verbose=0,
    shuffle=False,
    callbacks=[callback],
)
members = [keras.models.load_model(f"snapshots/{name}") for name in sorted(os.listdir("snapshots"))]
outputs = np.array([member.predict(x[48:], verbose=0) for member in members])
record(count=len(members), rates=callback.lrates, mean=outputs.mean(0))
