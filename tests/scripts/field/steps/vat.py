import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class VAT(keras.Model):
    """Virtual adversarial training: one power iteration, a norm per example."""

    def train_step(self, data):
        (x, d), y = data
        kl = keras.losses.KLDivergence()
        p = tf.stop_gradient(self(x, training=True))
        d = 1e-2 * tf.math.l2_normalize(d, axis=1)
        with tf.GradientTape() as inner:
            inner.watch(d)
            distance = kl(p, self(x + d, training=True))
        g = inner.gradient(distance, d)
        r = 0.3 * tf.math.l2_normalize(tf.stop_gradient(g), axis=1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True)) + kl(p, self(x + r, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(36, 4).astype("float32"), np.random.randint(0, 3, 36)
d = np.random.randn(36, 4).astype("float32")
inputs = keras.Input((4,))
model = VAT(inputs, layers.Dense(3, "softmax")(layers.Dense(8, "tanh")(inputs)))
model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
model.fit((x, d), y, epochs=3, batch_size=12, shuffle=False)
record(weights=model.get_weights())
