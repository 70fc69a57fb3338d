import keras
import numpy as np
from keras import layers, ops
from recording import record


class MultiTaskLoss(layers.Layer):
    """Kendall's weighting of losses by learned log-variances."""

    def __init__(self, outputs, **kwargs):
        super().__init__(**kwargs)
        self.outputs = outputs

    def build(self, shapes):
        self.log_vars = [self.add_weight(shape=(1,), initializer="zeros", name=f"lv{i}") for i in range(self.outputs)]

    def call(self, inputs):
        ys, ps = inputs[: self.outputs], inputs[self.outputs :]
        loss = 0.0
        for y, p, log_var in zip(ys, ps, self.log_vars):
            loss = loss + ops.sum(ops.exp(-log_var) * (y - p) ** 2.0 + log_var, axis=-1)
        self.add_loss(ops.mean(loss))
        return ps


keras.utils.set_random_seed(0)
x = np.random.rand(46, 5).astype("float32")
y1, y2 = x @ np.random.rand(5, 1).astype("float32"), x @ np.random.rand(5, 2).astype("float32")
inputs, t1, t2 = keras.Input((5,)), keras.Input((1,)), keras.Input((2,))
h = layers.Dense(10, "relu", activity_regularizer=keras.regularizers.L2(1e-3))(inputs)
p1, p2 = layers.Dense(1)(h), layers.Dense(2)(h)
outputs = MultiTaskLoss(2)([t1, t2, p1, p2])
model = keras.Model([inputs, t1, t2], outputs)
model.compile(keras.optimizers.Adam(0.01))
history = model.fit([x, y1, y2], batch_size=16, epochs=4, shuffle=False)
record(history=history.history, weights=model.get_weights(), predicted=model.predict([x, y1, y2]))
