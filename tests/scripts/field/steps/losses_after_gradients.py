import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class Sparse(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.mean(ops.abs(x)))
        return x


class Total(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred)) + ops.square(ops.mean(y_true - y_pred))


class Late(keras.Model):
    """Reads the losses of layers after a loss of the whole batch, and after the gradients."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss(y, self(x, training=True))
            loss += sum(self.losses)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"total": loss, "added": sum(self.losses)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 4).astype("float32"), np.random.rand(34, 1).astype("float32")
inputs = keras.Input((4,))
model = Late(inputs, layers.Dense(1)(Sparse()(layers.Dense(6, "tanh", kernel_regularizer="l2")(inputs))))
model.compile(keras.optimizers.SGD(0.1), Total())
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
