import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Helped(keras.Model):
    """Parts of the step are functions with @tf.function."""

    @tf.function
    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        return loss, y_pred, tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        x, y = data
        loss, y_pred, gradients = self.gradients_of(x, y)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
x, y = np.random.rand(32, 4).astype("float32"), np.random.rand(32, 1).astype("float32")
inputs = keras.Input((4,))
model = Helped(inputs, layers.Dense(1)(layers.Dense(6, "tanh")(inputs)))
model.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=dict(sorted(history.history.items())), weights=model.get_weights())
