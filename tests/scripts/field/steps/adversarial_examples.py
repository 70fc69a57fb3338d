import keras
import numpy as np
import tensorflow as tf
from recording import record


class Robust(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = self.compute_loss(x, y, self(x, training=True))
        attacked = x + 0.05 * tf.sign(tape.gradient(loss, x))
        with tf.GradientTape() as tape:
            y_pred = self(attacked, training=True)
            loss = self.compute_loss(x, y, y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.compute_metrics(x, y, y_pred)


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.randint(0, 2, 40)
inputs = keras.Input((4,))
model = Robust(inputs, keras.layers.Dense(2, "softmax")(keras.layers.Dense(6, "tanh")(inputs)))
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, epochs=2, batch_size=10, shuffle=False)
record(weights=model.get_weights(), accuracy=history.history["accuracy"])
