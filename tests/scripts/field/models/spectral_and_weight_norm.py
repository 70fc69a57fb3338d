import keras
import numpy as np
from keras import layers, ops
from recording import record


class WeightNorm(layers.Wrapper):
    """w = g * v / |v|, by a wrapped layer's kernel."""

    def build(self, shape):
        self.layer.build(shape)
        self.v = self.layer.kernel
        self.g = self.add_weight(shape=(self.v.shape[-1],), initializer="ones", name="g")

    def call(self, x):
        kernel = self.g * self.v / ops.norm(self.v, axis=0)
        return ops.matmul(x, kernel) + self.layer.bias


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 8, 8, 2).astype("float32"), np.random.rand(33, 2).astype("float32")
model = keras.Sequential(
    [
        keras.Input((8, 8, 2)),
        layers.SpectralNormalization(layers.Conv2D(4, 3, activation="relu"), power_iterations=2),
        layers.Flatten(),
        WeightNorm(layers.Dense(6)),
        layers.UnitNormalization(),
        layers.Dense(2),
    ]
)
model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), keras.losses.Huber(0.3))
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights(), predicted=model.predict(x[:5]))
