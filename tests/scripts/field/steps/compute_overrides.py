import keras
import numpy as np
from keras import layers, ops
from recording import record


class Overridden(keras.Model):
    """compute_loss, compute_metrics, test_step and predict_step of its own; Keras' train_step."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.regularization = keras.metrics.Mean(name="regularization")
        self.largest = keras.metrics.Mean(name="largest")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        extra = 1e-3 * ops.sum(ops.square(y_pred)) + 0.1 * ops.mean(
            ops.abs(y_pred - ops.mean(x, axis=1, keepdims=True))
        )
        self.regularization.update_state(extra)
        return loss + extra

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.largest.update_state(ops.max(ops.abs(y_pred - y), axis=-1))
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**results, "largest": self.largest.result()}

    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compute_loss(x, y, y_pred)
        return self.compute_metrics(x, y, 2.0 * y_pred)

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return {"twice": 2.0 * self(x, training=False), "rank": ops.argsort(x, axis=-1)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 4).astype("float32"), np.random.rand(34, 2).astype("float32")
inputs = keras.Input((4,))
model = Overridden(inputs, layers.Dense(2)(layers.Dense(6, "tanh")(inputs)))
model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False, validation_data=(x[:9], y[:9]))
record(weights=model.get_weights(), predicted=model.predict(x[:5], verbose=0), largest=history.history["largest"])
