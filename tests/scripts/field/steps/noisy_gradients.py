import keras
import numpy as np
import tensorflow as tf
from recording import record


# draws: noise in gradients
class Noisy(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients = [g + tf.random.normal(tf.shape(g), stddev=0.01) for g in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return self.compute_metrics(x, y, y_pred)


keras.utils.set_random_seed(0)
x, y = np.random.rand(64, 4).astype("float32"), np.random.rand(64, 1).astype("float32")
inputs = keras.Input((4,))
model = Noisy(inputs, keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse")
model.fit(x, y, epochs=2, batch_size=16, shuffle=False)
record(weights=model.get_weights(), score=model.evaluate(x, y))
