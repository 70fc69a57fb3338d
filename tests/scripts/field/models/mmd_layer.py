# per replica: depends on more than single examples
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class MaximumMeanDiscrepancy(layers.Layer):
    """As in InfoVAE: the codes of the batch are compared with draws of the prior, in a layer that adds a loss."""

    def kernel(self, a, b):
        return ops.exp(-ops.mean(ops.square(a[:, None] - b[None]), axis=-1))

    def call(self, z):
        prior = tf.random.stateless_normal(tf.shape(z), seed=[1, 2])
        both = ops.mean(self.kernel(prior, prior)) + ops.mean(self.kernel(z, z))
        self.add_loss(20.0 * (both - 2 * ops.mean(self.kernel(prior, z))))
        return z


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
inputs = keras.Input((6,))
code = MaximumMeanDiscrepancy()(layers.Dense(2)(layers.Dense(8, "relu")(inputs)))
model = keras.Model(inputs, layers.Dense(6)(code))
model.compile(keras.optimizers.SGD(0.05), "mse")
history = model.fit(x, x, epochs=2, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights())
