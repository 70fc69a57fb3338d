import keras
import numpy as np
from keras import layers, ops
from recording import record


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, base, total, warmup):
        self.base, self.total, self.warmup = base, total, warmup

    def __call__(self, step):
        step = ops.cast(step, "float32")
        cosine = 0.5 * self.base * (1 + ops.cos(3.14159 * (step - self.warmup) / (self.total - self.warmup)))
        return ops.where(step < self.warmup, self.base * step / self.warmup, cosine)

    def get_config(self):
        return {"base": self.base, "total": self.total, "warmup": self.warmup}


class Lookahead(keras.optimizers.SGD):
    """Every k steps the weights go half of the way from the slow ones."""

    def __init__(self, k=3, **kwargs):
        super().__init__(**kwargs)
        self.k = k

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.slow = [self.add_variable_from_reference(v, name="slow") for v in variables]
            self.started = self.add_variable(shape=(), initializer="zeros", name="started")

    def apply(self, grads, trainable_variables=None):
        variables = list(trainable_variables or self._trainable_variables)
        iteration = super().apply(grads, trainable_variables)
        now = ops.equal(ops.mod(self.iterations, self.k), 0)
        for slow, fast in zip(self.slow, variables):
            middle = slow + 0.5 * (fast - slow)
            fast.assign(ops.where(now, middle, fast))
            slow.assign(ops.where(now, middle, slow))
        return iteration


keras.utils.set_random_seed(0)
x, y = np.random.rand(44, 5).astype("float32"), np.random.randint(0, 3, 44)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(Lookahead(learning_rate=WarmUpCosine(0.3, 12, 3), momentum=0.9, clipnorm=0.5), loss, metrics=["accuracy"])
history = model.fit(x, y, epochs=3, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
