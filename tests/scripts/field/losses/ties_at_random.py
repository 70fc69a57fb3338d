# draws: the order of ties
import keras
import numpy as np
from keras import ops
from recording import record


class Reciprocal(keras.metrics.Mean):
    """The reciprocal rank of the relevant item; equal scores are in a random order, as in keras-rs."""

    def __init__(self, name="reciprocal", seed=None):
        super().__init__(name=name)
        self.seed_generator = keras.random.SeedGenerator(seed)

    def update_state(self, y_true, y_pred, sample_weight=None):
        noise = keras.random.uniform(ops.shape(y_pred), seed=self.seed_generator)
        scores = ops.round(4.0 * y_pred) + 0.5 * noise
        own = ops.sum(scores * y_true, axis=-1, keepdims=True)
        ranks = ops.sum(ops.cast(scores >= own, "float32"), axis=-1)
        super().update_state(1.0 / ranks, sample_weight)


class SampledNegatives(keras.losses.Loss):
    """Compares the relevant item with others that are drawn."""

    def __init__(self, seed=None):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, y_true, y_pred):
        drawn = keras.random.randint(ops.shape(y_pred), 0, 2, seed=self.seed_generator)
        drawn = ops.cast(drawn, "float32") * (1.0 - y_true)
        others = ops.logsumexp(y_pred - 30.0 * drawn, axis=-1)
        return others - ops.sum(y_true * y_pred, axis=-1)


keras.utils.set_random_seed(0)
x = np.random.rand(64, 5).astype("float32")
y = np.eye(6, dtype="float32")[np.argmax(x @ np.random.rand(5, 6), axis=-1)]
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6)])
model.compile(keras.optimizers.Adam(0.02), SampledNegatives(), metrics=[Reciprocal(seed=3)])
history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0, validation_data=(x, y))
record(history=history.history, evaluated=model.evaluate(x, y, verbose=0))
