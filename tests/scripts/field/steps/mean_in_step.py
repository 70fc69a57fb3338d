import keras
import numpy as np
import tensorflow as tf
from recording import record


class Plain(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"error": loss}

    def test_step(self, data):
        x, y = data
        return {"error": tf.reduce_mean(tf.abs(self(x, training=False) - y))}


keras.utils.set_random_seed(0)
x, y = np.random.rand(32, 4).astype("float32"), np.random.rand(32, 1).astype("float32")
inputs = keras.Input((4,))
model = Plain(inputs, keras.layers.Dense(1)(inputs))
model.compile("adam")
history = model.fit(x, y, validation_data=(x[:16], y[:16]), epochs=2, batch_size=16, shuffle=False)
record(weights=model.get_weights(), history=history.history)
