# After MGDA and GradCAM-guided losses: gradients by the features between two parts of a model.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class TwoTasks(keras.Model):
    def __init__(self):
        super().__init__()
        self.backbone = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh"), layers.Dense(4, "tanh")])
        self.one, self.two = layers.Dense(1), layers.Dense(1)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            features = self.backbone(x, training=True)
            first = tf.reduce_mean(tf.square(self.one(features) - y))
            second = tf.reduce_mean(tf.abs(self.two(features) - 1.0 + y))
        a, b = tape.gradient(first, features), tape.gradient(second, features)
        share = tf.clip_by_value(tf.reduce_sum((b - a) * b) / (tf.reduce_sum(tf.square(a - b)) + 1e-8), 0.0, 1.0)
        mixed = share * a + (1 - share) * b
        shared = self.backbone.trainable_variables
        gradients = tape.gradient(features, shared, output_gradients=mixed)
        heads = [*self.one.trainable_variables, *self.two.trainable_variables]
        own = tape.gradient(first, heads[:2]) + tape.gradient(second, heads[2:])
        self.optimizer.apply_gradients(zip(gradients + own, shared + heads))
        return {"first": first, "second": second, "share": share}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5).astype("float32"), np.random.rand(33, 1).astype("float32")
model = TwoTasks()
model.compile(keras.optimizers.SGD(0.1))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, weights=[w.numpy() for w in model.weights])
