"""Validation metrics computed by NumPy in a callback, which decides what is saved; a plot of each epoch."""

import json
import pathlib

import keras
import numpy as np
from recording import record


class F1History(keras.callbacks.Callback):
    def __init__(self, validation, out, patience=2):
        super().__init__()
        self.x, self.y = validation
        self.out, self.patience = pathlib.Path(out), patience
        self.best, self.wait, self.values = -np.inf, 0, []
        self.out.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, epoch, logs=None):
        logs = logs if logs is not None else {}
        scores = self.model.predict(self.x, verbose=0)[:, 0]
        guessed = scores > np.median(scores)
        hits = np.sum(guessed & (self.y == 1))
        f1 = 2 * hits / max(1, guessed.sum() + (self.y == 1).sum())
        logs["val_f1"] = f1
        self.values.append(float(f1))
        (self.out / f"epoch{epoch}.json").write_text(json.dumps({"f1": float(f1), "mean": float(scores.mean())}))
        np.save(self.out / f"scores{epoch}.npy", scores)
        if f1 > self.best:
            self.best, self.wait = f1, 0
            self.model.save_weights(self.out / "best.weights.h5")
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self.model.stop_training = True
                self.stopped = epoch

    def on_train_end(self, logs=None):
        self.model.load_weights(self.out / "best.weights.h5")


keras.utils.set_random_seed(6)
x = np.random.randn(90, 6).astype("float32")
y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype("int32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile(keras.optimizers.RMSprop(0.01), "binary_crossentropy")
f1 = F1History((x[60:], y[60:]), "scores")
reduce = keras.callbacks.ReduceLROnPlateau("val_f1", mode="max", patience=1, factor=0.5)
history = model.fit(x[:60], y[:60], epochs=8, batch_size=15, shuffle=False, verbose=0, callbacks=[f1, reduce])
files = sorted(path.name for path in pathlib.Path("scores").iterdir())
record(values=f1.values, history=history.history, files=files, stopped=getattr(f1, "stopped", None))
record(weights=model.get_weights(), means=[json.loads(p.read_text())["mean"] for p in sorted(f1.out.glob("*.json"))])
