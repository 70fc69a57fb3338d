import functools

import keras
import numpy as np
from keras import layers, ops
from recording import record


def quantile_loss(q, y, y_pred):
    e = y - y_pred
    return ops.mean(ops.maximum(q * e, (q - 1) * e), axis=-1)


class Coverage(keras.metrics.Metric):
    """Share of targets below the upper quantile; keeps counts."""

    def __init__(self, name="coverage", **kwargs):
        super().__init__(name=name, **kwargs)
        self.below = self.add_weight(name="below", initializer="zeros")
        self.seen = self.add_weight(name="seen", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        inside = ops.cast(y_true < y_pred, self.dtype)
        if sample_weight is not None:
            inside = inside * ops.cast(ops.reshape(sample_weight, (-1, 1)), self.dtype)
        self.below.assign_add(ops.sum(inside))
        self.seen.assign_add(ops.cast(ops.size(y_true), self.dtype))

    def result(self):
        return self.below / ops.maximum(self.seen, 1.0)


keras.utils.set_random_seed(0)
series = np.sin(np.arange(80) / 5.0).astype("float32") + 0.1 * np.random.randn(80).astype("float32")
x = np.stack([series[i : i + 8] for i in range(70)])[..., None]
y = series[8:78][:, None]
inputs = keras.Input((8, 1))
h = layers.LSTM(6)(inputs)
outputs = {f"q{int(q * 100)}": layers.Dense(1, name=f"q{int(q * 100)}")(h) for q in (0.1, 0.5, 0.9)}
model = keras.Model(inputs, outputs)
model.compile(
    keras.optimizers.Adam(0.01),
    loss={f"q{int(q * 100)}": functools.partial(quantile_loss, q) for q in (0.1, 0.5, 0.9)},
    loss_weights={"q10": 1.0, "q50": 2.0, "q90": 1.0},
    metrics={"q90": Coverage()},
)
targets = {name: y for name in outputs}
history = model.fit(x, targets, epochs=3, batch_size=16, validation_split=0.2, shuffle=False)
record(weights=model.get_weights(), loss=history.history["loss"], coverage=history.history["q90_coverage"])
