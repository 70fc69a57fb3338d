import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class GradientRegularised(keras.Model):
    """Penalises the norm of the gradient of the weights (gradient regularisation)."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            first = inner.gradient(loss, self.trainable_variables)
            penalty = tf.add_n([tf.reduce_sum(tf.square(g)) for g in first])
            total = loss + 0.1 * penalty
        gradients = outer.gradient(total, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": total, "penalty": penalty}


keras.utils.set_random_seed(0)
x, y = np.random.rand(42, 4).astype("float32"), np.random.rand(42, 1).astype("float32")
inputs = keras.Input((4,))
model = GradientRegularised(inputs, layers.Dense(1)(layers.Dense(6, "tanh")(inputs)))
model.compile(keras.optimizers.SGD(0.2), "mse")
history = model.fit(x, y, epochs=3, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
