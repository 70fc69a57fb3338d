import keras
import numpy as np
import tensorflow as tf
from recording import record


class Discriminative(keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = keras.layers.Dense(6, "relu"), keras.layers.Dense(1)
        self.body_optimizer, self.head_optimizer = keras.optimizers.SGD(0.01), keras.optimizers.Adam(0.01)

    def call(self, x):
        return self.head(self.body(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x))
        body, head = self.body.trainable_variables, self.head.trainable_variables
        self.body_optimizer.apply_gradients(zip(tape.gradient(loss, body), body))
        self.head_optimizer.apply_gradients(zip(tape.gradient(loss, head), head))
        return {"loss": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
model = Discriminative()
model.compile(loss="mse")
model.fit(x, y, epochs=2, batch_size=10, shuffle=False)
record(weights=model.get_weights())
