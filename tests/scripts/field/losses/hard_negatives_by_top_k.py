# After SSD's loss and OHEM: the hardest negatives of the whole batch, three for each positive, and a ranking loss.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class HardNegatives(keras.losses.Loss):
    def __init__(self, ratio=3, **options):
        super().__init__(**options)
        self.ratio = ratio

    def call(self, y_true, logits):
        y, logits = tf.reshape(y_true, [-1]), tf.reshape(logits, [-1])
        errors = tf.nn.sigmoid_cross_entropy_with_logits(y, logits)
        positives = tf.reduce_sum(y)
        k = tf.cast(tf.minimum(self.ratio * tf.maximum(positives, 1.0), tf.reduce_sum(1 - y)), tf.int32)
        hardest, _ = tf.math.top_k(errors * (1 - y), k)
        return (tf.reduce_sum(errors * y) + tf.reduce_sum(hardest)) / tf.maximum(positives, 1.0)


def rank(y_true, logits):
    """Smooth AUC: all pairs of positives and negatives of the batch; a boolean mask of unknown size."""
    y, logits = tf.reshape(y_true, [-1]) > 0.5, tf.reshape(logits, [-1])
    pairs = tf.boolean_mask(logits, y)[:, None] - tf.boolean_mask(logits, ~y)[None]
    return tf.math.divide_no_nan(tf.reduce_sum(tf.nn.softplus(-pairs)), tf.cast(tf.size(pairs), tf.float32))


class Both(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        priors = tf.reduce_mean(y)
        return loss + 0.1 * tf.abs(tf.reduce_mean(tf.sigmoid(y_pred)) - priors)


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5).astype("float32"), (np.random.rand(33, 1) < 0.3).astype("float32")
found = {}
for name, loss in (("hard", HardNegatives()), ("rank", rank)):
    inputs = keras.Input((5,))
    model = Both(inputs, layers.Dense(1)(layers.Dense(8, "relu")(inputs)))
    model.compile(keras.optimizers.Adam(0.02), loss, metrics=[keras.metrics.AUC(from_logits=True), "binary_accuracy"])
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, validation_split=0.2)
    found[name] = [history.history, model.evaluate(x, y, batch_size=16), *model.get_weights()]
record(**found)
