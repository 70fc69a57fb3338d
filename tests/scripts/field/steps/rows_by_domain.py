# After domain-adversarial training: a loss looks rows of an output up, and a gradient is reversed.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


@tf.custom_gradient
def reverse(x):
    return tf.identity(x), lambda upstream: -0.5 * upstream


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__()
        self.features, self.classes, self.domain = layers.Dense(8, "tanh"), layers.Dense(3), layers.Dense(1)

    def train_step(self, data):
        x, (labels, domain) = data
        labelled = tf.where(domain[:, 0] < 0.5)[:, 0]
        with tf.GradientTape() as tape:
            features = self.features(x)
            logits, wanted = tf.gather(self.classes(features), labelled), tf.gather(labels, labelled)
            known = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits))
            known += 0.1 * tf.reduce_mean(tf.square(tf.gather(features, labelled)))
            judged = self.domain(reverse(features))
            apart = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(domain, judged))
            loss = known + apart
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables))
        return {"known": known, "apart": apart, "labelled": tf.size(labelled)}


keras.utils.set_random_seed(0)
x, labels = np.random.rand(33, 5).astype("float32"), np.random.randint(0, 3, 33)
domain = (np.arange(33)[:, np.newaxis] % 3 == 0).astype("float32")
model = Adversarial()
model.compile("adam")
history = model.fit(tf.data.Dataset.from_tensor_slices((x, (labels, domain))).batch(8), epochs=2)
record(history=history.history, weights=[w.numpy() for w in model.weights])
