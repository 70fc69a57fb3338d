# draws: sums in half precision are rounded in another order
# After FaceNet and Hermans et al.: batch-hard triplets under mixed_float16, with the loss scaled by the optimizer.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Embedder(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            e = tf.math.l2_normalize(tf.cast(self(x, training=True), tf.float32), axis=1)
            d = tf.reduce_sum(tf.square(e[:, None] - e[None]), axis=-1)
            same = tf.cast(y[:, None] == y[None], tf.float32)
            furthest, nearest = tf.reduce_max(d * same, axis=1), tf.reduce_min(d + 10.0 * same, axis=1)
            hard = tf.nn.relu(0.3 + furthest - nearest)
            loss = tf.reduce_sum(hard) / (tf.math.count_nonzero(hard, dtype=tf.float32) + 1e-6)
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss, "active": tf.math.count_nonzero(hard, dtype=tf.float32)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 6).astype("float32"), np.random.randint(0, 4, 33)
found = {}
for policy in ("mixed_float16", "float64"):
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    embedding = layers.Dense(4, dtype="float64" if policy == "float64" else "float32")
    model = Embedder(inputs, embedding(layers.Dense(8, "relu")(inputs)))
    # Each replica has N times the gradient of one device until they are averaged: a scale that overflows on none.
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=64.0))
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
    found[policy] = [history.history["loss"], *model.get_weights()]
record(**found)
