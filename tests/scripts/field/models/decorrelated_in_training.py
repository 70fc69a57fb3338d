# per replica: depends on more than single examples
import keras
import numpy as np
from keras import layers, ops
from recording import record


class Decorrelation(layers.Layer):
    """As regularizers of representations: the covariance of the batch, only in training."""

    def call(self, x, training=False):
        if training:
            centred = x - ops.mean(x, axis=0)
            covariance = ops.matmul(ops.transpose(centred), centred) / ops.cast(ops.shape(x)[0], "float32")
            off = ops.sum(ops.square(covariance)) - ops.sum(ops.square(ops.diagonal(covariance)))
            self.add_loss(5.0 * off)
        return x


class Centred(layers.Layer):
    def call(self, x, training=False):
        return x - ops.mean(x, axis=0, keepdims=True) if training else x


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 6).astype("float32"), np.random.rand(33, 1).astype("float32")
found = {}
for kind in (Decorrelation, Centred):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(1)(kind()(layers.Dense(8, "tanh")(inputs))))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
    found[kind.__name__] = [history.history["loss"], *model.get_weights()]
record(**found)
