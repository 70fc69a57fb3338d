import keras
import numpy as np
from keras import ops
from recording import record


class Annealed(keras.layers.Layer):
    """Counts its calls in training, and anneals a temperature by it."""

    def __init__(self, units):
        super().__init__()
        self.units = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform")
        self.step = self.add_weight(shape=(), dtype="int32", trainable=False, initializer="zeros")

    def call(self, x, training=False):
        if training:
            self.step.assign_add(1)
        temperature = ops.exp(-0.1 * ops.cast(self.step, "float32")) + 0.5
        return ops.tanh(ops.matmul(x, self.kernel) / temperature)


class Clipped(keras.constraints.Constraint):
    def __call__(self, w):
        return ops.clip(w, -0.4, 0.4)


keras.utils.set_random_seed(11)
x = np.random.rand(40, 5).astype("float32")
layer = Annealed(6)
model = keras.Sequential(
    [keras.Input((5,)), layer, keras.layers.Dense(2, kernel_constraint=Clipped(), kernel_regularizer="l1l2")]
)
model.compile("nadam", "mse")
history = model.fit(x, x[:, :2], epochs=3, batch_size=16, shuffle=False, verbose=0)
record(history=history.history, step=int(layer.step.numpy()), weights=model.get_weights())
