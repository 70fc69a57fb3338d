import keras
import numpy as np
import tensorflow as tf
from recording import record


class Clipped(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.1)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss, "norm": norm}


keras.utils.set_random_seed(0)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
inputs = keras.Input((4,))
model = Clipped(inputs, keras.layers.Dense(1)(keras.layers.Dense(6, "tanh")(inputs)))
model.compile("sgd", "mse")
model.fit(x, y, epochs=3, batch_size=10, shuffle=False)
record(weights=model.get_weights())
