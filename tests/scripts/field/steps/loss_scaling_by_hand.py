import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Scaled(keras.Model):
    """Mixed precision in a step of one's own, with the optimizer's loss scale."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.compiled_error.update_state(y, y_pred)
        return {"error": self.compiled_error.result()}


keras.utils.set_random_seed(0)
keras.mixed_precision.set_global_policy("mixed_float16")
x, y = np.random.rand(33, 4).astype("float32"), np.random.rand(33, 1).astype("float32")
inputs = keras.Input((4,))
outputs = layers.Dense(1, dtype="float32")(layers.Dense(8, "relu")(inputs))
model = Scaled(inputs, outputs)
model.compiled_error = keras.metrics.RootMeanSquaredError()
model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0), "mse")
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(error=np.round(history.history["error"], 3), weights=np.round(model.get_weights()[-1], 2))
