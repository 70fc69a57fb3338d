# After Chen et al.'s GradNorm: weights of the tasks are trained by a loss of the norms of their gradients.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class GradNorm(keras.Model):
    def __init__(self):
        super().__init__()
        self.trunk = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh")])
        self.heads = [layers.Dense(1), layers.Dense(3)]
        self.task_weights = self.add_weight(shape=(2,), initializer="ones", name="task_weights")
        self.initial = self.add_weight(shape=(2,), initializer="zeros", trainable=False, name="initial")
        self.weight_optimizer = keras.optimizers.SGD(0.05)

    def train_step(self, data):
        x, (a, b) = data
        kernel = self.trunk.layers[-1].kernel
        with tf.GradientTape(persistent=True) as tape:
            h = self.trunk(x, training=True)
            first = tf.reduce_mean(tf.square(self.heads[0](h)[:, 0] - a))
            second = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(b, self.heads[1](h)))
            losses = tf.stack([first, second])
            total = tf.reduce_sum(self.task_weights.value * losses)
            norms = tf.stack([tf.norm(self.task_weights[i] * tape.gradient(losses[i], kernel)) for i in range(2)])
            start = tf.where(self.initial.value == 0, losses, self.initial.value)
            rates = losses / start
            target = tf.stop_gradient(tf.reduce_mean(norms) * tf.pow(rates / tf.reduce_mean(rates), 1.5))
            balance = tf.reduce_sum(tf.abs(norms - target))
        variables = self.trunk.trainable_variables + [w for head in self.heads for w in head.trainable_variables]
        gradients, of_weights = tape.gradient(total, variables), tape.gradient(balance, self.task_weights)
        del tape
        self.optimizer.apply_gradients(zip(gradients, variables))
        self.weight_optimizer.apply_gradients([(of_weights, self.task_weights)])
        self.task_weights.assign(2 * self.task_weights / tf.reduce_sum(self.task_weights))
        self.initial.assign(start)
        return {"loss": total, "balance": balance, "first_weight": self.task_weights[0]}


keras.utils.set_random_seed(0)
x, a, b = np.random.rand(33, 5).astype("float32"), np.random.rand(33).astype("float32"), np.random.randint(0, 3, 33)
model = GradNorm()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, (a, b))).batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
