import keras
import numpy as np
import tensorflow as tf
from recording import record


class SAM(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        steps = [0.05 * g / (norm + 1e-12) for g in gradients]
        for variable, step in zip(self.trainable_variables, steps):
            variable.assign_add(step)
        with tf.GradientTape() as tape:
            again = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(again, self.trainable_variables)
        for variable, step in zip(self.trainable_variables, steps):
            variable.assign_sub(step)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
inputs = keras.Input((4,))
model = SAM(inputs, keras.layers.Dense(1)(keras.layers.Dense(6, "tanh")(inputs)))
model.compile(keras.optimizers.SGD(0.05), "mse")
model.fit(x, y, epochs=3, batch_size=10, shuffle=False)
record(weights=model.get_weights())
