import keras
import numpy as np
import tensorflow as tf
from recording import record


class MAML(keras.Model):
    """One inner step of gradient descent on the support set, by hand, then the loss of the query set."""

    def __init__(self):
        super().__init__()
        self.w1 = self.add_weight(shape=(3, 8), initializer="glorot_uniform", name="w1")
        self.b1 = self.add_weight(shape=(8,), initializer="zeros", name="b1")
        self.w2 = self.add_weight(shape=(8, 1), initializer="glorot_uniform", name="w2")
        self.mse = keras.losses.MeanSquaredError()

    def forward(self, x, params):
        w1, b1, w2 = params
        return tf.matmul(tf.tanh(tf.matmul(x, w1) + b1), w2)

    def call(self, x):
        return self.forward(x, [self.w1, self.b1, self.w2])

    def train_step(self, data):
        (xs, ys), (xq, yq) = data
        params = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                support = self.mse(ys, self.forward(xs, params))
            grads = inner.gradient(support, params)
            adapted = [p - 0.5 * g for p, g in zip(params, grads)]
            loss = self.mse(yq, self.forward(xq, adapted))
        meta = outer.gradient(loss, params)
        self.optimizer.apply_gradients(zip(meta, params))
        return {"loss": loss}


keras.utils.set_random_seed(0)
x = np.random.rand(40, 3).astype("float32")
y = np.sin(x.sum(axis=1, keepdims=True)).astype("float32")
support = tf.data.Dataset.from_tensor_slices((x[:20], y[:20])).batch(10)
query = tf.data.Dataset.from_tensor_slices((x[20:], y[20:])).batch(10)
model = MAML()
model.compile(optimizer=keras.optimizers.SGD(0.1))
history = model.fit(tf.data.Dataset.zip((support, query)), epochs=3)
record(history=history.history, weights=model.get_weights())
