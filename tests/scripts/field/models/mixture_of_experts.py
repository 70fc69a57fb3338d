import keras
import numpy as np
from keras import layers, ops
from recording import record


class Router(layers.Layer):
    """A switch layer; its auxiliary loss compares the load of the experts over the batch."""

    def __init__(self, experts, **kwargs):
        super().__init__(**kwargs)
        self.experts = experts
        self.route = layers.Dense(experts)

    def call(self, x):
        probabilities = ops.softmax(self.route(x), axis=-1)
        chosen = ops.one_hot(ops.argmax(probabilities, axis=-1), self.experts)
        density, proxy = ops.mean(chosen, axis=0), ops.mean(probabilities, axis=0)
        self.add_loss(2.0 * ops.mean(density * proxy) * self.experts**2)
        return chosen * probabilities


# per replica: adds as a loss
keras.utils.set_random_seed(0)
x = np.random.rand(40, 5).astype("float32")
y = x.sum(axis=1, keepdims=True)
inputs = keras.Input((5,))
gates = Router(3)(inputs)
experts = ops.stack([layers.Dense(4, "relu")(inputs) for _ in range(3)], axis=1)
h = ops.sum(ops.expand_dims(gates, -1) * experts, axis=1)
model = keras.Model(inputs, layers.Dense(1)(h))
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, epochs=2, batch_size=14, shuffle=False)
record(history=history.history, weights=model.get_weights())
