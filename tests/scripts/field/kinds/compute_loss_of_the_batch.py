import keras
import numpy as np
import tensorflow as tf
from keras import ops
from recording import record


class Positives(keras.Sequential):
    """Its loss is divided by the positive examples of the batch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        weight = ops.cast(y > 0.7, "float32")
        return ops.sum(ops.square(y - y_pred) * weight) / ops.maximum(ops.sum(weight), 1.0)


class Vector(keras.Sequential):
    """Its loss is a value for each example, which Keras takes."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y - y_pred), axis=-1)


class Targets(keras.Sequential):
    """Passes targets with an unknown number of rows to Keras' compute_loss."""

    def train_step(self, data):
        x, y = data
        targets = tf.numpy_function(lambda one: one * np.float32(0.9), [y], tf.float32, stateful=False)
        targets.set_shape([None, 1])
        with tf.GradientTape() as tape:
            loss = super().compute_loss(x, targets, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


x, y = np.random.RandomState(0).rand(44, 4).astype("float32"), np.sort(np.random.RandomState(1).rand(44, 1), 0)
found = {}
for kind in (Positives, Vector, Targets):
    keras.utils.set_random_seed(1)
    model = kind([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse" if kind is Targets else None)
    history = model.fit(x, y.astype("float32"), epochs=2, batch_size=8, shuffle=False, verbose=0)
    found[kind.__name__] = [history.history["loss"], model.get_weights()]
record(**found)
