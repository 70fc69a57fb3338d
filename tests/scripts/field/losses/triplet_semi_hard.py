import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def pairwise(e):
    dot = tf.matmul(e, tf.transpose(e))
    sq = tf.linalg.diag_part(dot)
    return tf.maximum(tf.expand_dims(sq, 0) - 2.0 * dot + tf.expand_dims(sq, 1), 0.0)


def batch_hard_triplet_loss(labels, embeddings, margin=0.5):
    labels = tf.squeeze(labels, axis=-1) if len(labels.shape) > 1 else labels
    d = pairwise(tf.math.l2_normalize(embeddings, axis=1))
    same = tf.equal(tf.expand_dims(labels, 0), tf.expand_dims(labels, 1))
    eye = tf.cast(tf.eye(tf.shape(labels)[0]), tf.bool)
    positive = tf.cast(tf.logical_and(same, tf.logical_not(eye)), tf.float32)
    hardest_positive = tf.reduce_max(positive * d, axis=1, keepdims=True)
    negative = tf.cast(tf.logical_not(same), tf.float32)
    hardest_negative = tf.reduce_min(
        d + tf.reduce_max(d, axis=1, keepdims=True) * (1 - negative), axis=1, keepdims=True
    )
    return tf.reduce_mean(tf.maximum(hardest_positive - hardest_negative + margin, 0.0))


keras.utils.set_random_seed(0)
x, y = np.random.rand(45, 6).astype("float32"), np.random.randint(0, 4, 45)
model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(4)])
model.compile(keras.optimizers.Adam(0.005), loss=batch_hard_triplet_loss)
history = model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(20), epochs=4)
record(history=history.history, weights=model.get_weights())
