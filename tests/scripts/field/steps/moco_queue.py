import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class MoCo(keras.Model):
    def __init__(self, dim=4, size=24, momentum=0.95):
        super().__init__()
        self.query = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(dim)])
        self.key = keras.models.clone_model(self.query)
        self.key.set_weights(self.query.get_weights())
        self.momentum = momentum
        start = np.random.default_rng(0).normal(size=(size, dim)).astype("float32")
        self.queue = self.add_weight(
            shape=(size, dim), initializer=lambda shape, dtype=None: tf.constant(start), trainable=False, name="queue"
        )
        self.ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def train_step(self, data):
        a, b = data
        keys = tf.math.l2_normalize(self.key(b), axis=1)
        with tf.GradientTape() as tape:
            q = tf.math.l2_normalize(self.query(a), axis=1)
            positive = tf.reduce_sum(q * keys, axis=1, keepdims=True)
            negative = tf.matmul(q, self.queue, transpose_b=True)
            logits = tf.concat([positive, negative], axis=1) / 0.2
            loss = self.ce(tf.zeros(tf.shape(logits)[0], tf.int32), logits)
        gradients = tape.gradient(loss, self.query.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.query.trainable_variables))
        for k, q in zip(self.key.weights, self.query.weights):
            k.assign(self.momentum * k + (1 - self.momentum) * q)
        self.queue.assign(tf.concat([keys, self.queue], axis=0)[: self.queue.shape[0]])
        return {"loss": loss}


keras.utils.set_random_seed(0)
x = np.random.rand(36, 6).astype("float32")
model = MoCo()
model.compile(keras.optimizers.SGD(0.1))
history = model.fit(x, x + 0.05, batch_size=12, epochs=2, shuffle=False)
record(history=history.history, queue=model.queue.numpy())
