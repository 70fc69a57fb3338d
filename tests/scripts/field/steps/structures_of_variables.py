import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Structures(keras.Model):
    """Gradients of one variable, a dict, a nested list, and one that the loss does not use."""

    def __init__(self):
        super().__init__()
        self.body, self.head = layers.Dense(6, "tanh"), layers.Dense(1)
        self.unused, self.temperature = layers.Dense(2), self.add_weight(shape=(), initializer="ones", name="t")

    def build(self, shape):
        self.body.build(shape)
        self.head.build((None, 6))
        self.unused.build(shape)
        self.built = True

    def call(self, x):
        return self.head(self.body(x)) * self.temperature

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            for layer in (self.body, self.head):
                for variable in layer.trainable_variables:
                    tape.watch(variable.value)
            tape.watch(self.temperature.value)
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        by_name = tape.gradient(loss, {v.path: v for v in self.body.trainable_variables})
        kernel, bias = tape.gradient(loss, self.head.trainable_variables)
        temperature = tape.gradient(loss, self.temperature)
        nothing = tape.gradient(loss, self.unused.trainable_variables)
        zeros = tape.gradient(loss, self.unused.kernel, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        assert nothing == [None, None] or nothing[0] is not None
        pairs = [(by_name[v.path], v) for v in self.body.trainable_variables]
        pairs += [(kernel / (tf.norm(kernel) + 1.0), self.head.kernel), (bias, self.head.bias)]
        pairs += [(temperature, self.temperature), (zeros, self.unused.kernel)]
        self.optimizer.apply_gradients(pairs)
        return {"norm": tf.norm(kernel), "mse": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 4).astype("float32"), np.random.rand(34, 1).astype("float32")
model = Structures()
model.build((None, 4))
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
