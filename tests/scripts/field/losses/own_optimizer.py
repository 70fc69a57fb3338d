import keras
import numpy as np
from keras import ops
from recording import record


class SignMomentum(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.01, beta=0.9, **more):
        super().__init__(learning_rate=learning_rate, **more)
        self.beta = beta

    def build(self, variables):
        super().build(variables)
        self.momentums = [self.add_variable_from_reference(one, "momentum") for one in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, self.beta * momentum + (1 - self.beta) * gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ops.sign(momentum))


keras.utils.set_random_seed(0)
x, y = np.random.rand(20, 4).astype("float32"), np.random.rand(20, 2).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile(SignMomentum(), "mse")
history = model.fit(x, y, epochs=3, batch_size=7, shuffle=False)
record(loss=history.history["loss"], weights=model.get_weights())
