# per replica: adds as a loss
import keras
import numpy as np
from keras import layers, ops
from recording import record


class ActivityRegularization(layers.Layer):
    """As in the guide on subclassing: a loss that depends on the inputs."""

    def __init__(self, rate=1e-2):
        super().__init__()
        self.rate = rate

    def call(self, inputs):
        self.add_loss(self.rate * ops.sum(inputs))
        self.add_loss(self.rate * ops.mean(ops.square(inputs)))
        return inputs


class Sampling(layers.Layer):
    """KL divergence of a Gaussian, summed over the latent dimensions."""

    def call(self, inputs):
        mean, log_var = inputs
        kl = -0.5 * ops.sum(1 + log_var - ops.square(mean) - ops.exp(log_var), axis=-1)
        self.add_loss(ops.mean(kl))
        return mean


keras.utils.set_random_seed(0)
x = np.random.rand(39, 6).astype("float32")
inputs = keras.Input((6,))
h = ActivityRegularization()(layers.Dense(8, "relu", activity_regularizer="l1")(inputs))
z = Sampling()([layers.Dense(2)(h), layers.Dense(2)(h)])
model = keras.Model(inputs, layers.Dense(6)(z))
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, x, epochs=2, batch_size=14, shuffle=False, validation_split=0.2)
record(history=history.history, weights=model.get_weights())
