# After SwAV's public code: prototypes of unit length, and targets by Sinkhorn's iterations over the whole batch.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


@tf.function
def sinkhorn(scores, rounds=3):
    q = tf.transpose(tf.exp(scores / 0.5))
    q /= tf.reduce_sum(q)
    kinds, examples = tf.cast(tf.shape(q)[0], tf.float32), tf.cast(tf.shape(q)[1], tf.float32)
    for _ in tf.range(rounds):
        q /= tf.reduce_sum(q, axis=1, keepdims=True) * kinds
        q /= tf.reduce_sum(q, axis=0, keepdims=True) * examples
    return tf.transpose(q * examples)


class SwAV(keras.Model):
    def __init__(self):
        super().__init__()
        self.features = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(4), layers.UnitNormalization()]
        )
        self.prototypes = layers.Dense(5, use_bias=False)
        self.prototypes.build((None, 4))

    def train_step(self, data):
        crops = tf.concat(data, axis=0)
        self.prototypes.kernel.assign(tf.math.l2_normalize(self.prototypes.kernel.value, axis=0))
        with tf.GradientTape() as tape:
            scores = self.prototypes(self.features(crops, training=True))
            one, two = tf.split(scores, 2)
            targets = [tf.stop_gradient(sinkhorn(part)) for part in (one, two)]
            logs = [tf.nn.log_softmax(part / 0.5) for part in (one, two)]
            pairs = ((targets[0], logs[1]), (targets[1], logs[0]))
            loss = sum(-tf.reduce_mean(tf.reduce_sum(q * p, axis=1)) for q, p in pairs) / 2
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "used": tf.reduce_sum(tf.reduce_max(targets[0], axis=0))}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
model = SwAV()
model.compile(keras.optimizers.SGD(0.3, momentum=0.9))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, ::-1].copy())).batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
