import keras
import numpy as np
import tensorflow as tf
from recording import record


class Normalised(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        variables = self.trainable_variables
        gradients = [g / (tf.norm(g) + 1e-6) for g in tape.gradient(loss, variables)]
        self.optimizer.apply(gradients, variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
x, y = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 1).astype("float32")
inputs = keras.Input((4,))
model = Normalised(inputs, keras.layers.Dense(1)(keras.layers.Dense(6, "tanh")(inputs)))
model.compile("sgd", "mse", metrics=["mae"])
history = model.fit(x, y, epochs=3, batch_size=10, shuffle=False)
record(weights=model.get_weights(), loss=history.history["loss"])
