import keras
import numpy as np
from keras import ops
from recording import record


class SignMomentum(keras.optimizers.Optimizer):
    def build(self, variables):
        super().build(variables)
        self.momentums = [self.add_variable_from_reference(one, "momentum") for one in variables]

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momentums[self._get_variable_index(variable)]
        self.assign(momentum, 0.9 * momentum + 0.1 * gradient)
        self.assign_sub(variable, ops.cast(learning_rate, variable.dtype) * ops.sign(momentum))


class Lookahead(keras.optimizers.SGD):
    """Every third step the weights go half of the way back to the slow ones."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slow = [self.add_variable_from_reference(one, "slow") for one in variables]

    def apply(self, gradients, trainable_variables=None):
        iteration = super().apply(gradients, trainable_variables)
        now = ops.equal(ops.mod(self.iterations, 3), 0)
        for slow, fast in zip(self.slow, trainable_variables):
            middle = slow + 0.5 * (fast - slow)
            fast.assign(ops.where(now, middle, fast))
            slow.assign(ops.where(now, middle, slow))
        return iteration


class Centralized(keras.optimizers.SGD):
    """Keras' fit calls apply_gradients, and not apply."""

    def apply_gradients(self, pairs, **options):
        return super().apply_gradients([(g - ops.mean(g, axis=0), v) for g, v in pairs], **options)


x, y = np.random.RandomState(0).rand(20, 4).astype("float32"), np.random.RandomState(1).rand(20, 2)
found = {}
for optimizer in (SignMomentum(0.01), Lookahead(0.1, momentum=0.9), Centralized(0.1)):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    history = model.fit(x, y, epochs=3, batch_size=7, shuffle=False, verbose=0)
    found[type(optimizer).__name__] = [history.history["loss"], model.get_weights()]
record(**found)
