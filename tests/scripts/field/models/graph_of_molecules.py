import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Readout(layers.Layer):
    def call(self, inputs):
        nodes, adjacency, lengths = inputs
        mask = tf.sequence_mask(lengths, tf.shape(nodes)[1], dtype=tf.float32)[..., None]
        degree = tf.reduce_sum(adjacency, axis=-1, keepdims=True) + 1.0
        messages = (tf.matmul(adjacency, nodes) + nodes) / degree
        flat = tf.reshape(messages * mask, [-1, messages.shape[-1]])
        graph = tf.repeat(tf.range(tf.shape(nodes)[0]), tf.shape(nodes)[1])
        return tf.math.segment_sum(flat, graph) / tf.cast(lengths[:, None], tf.float32)


keras.utils.set_random_seed(0)
nodes = np.random.rand(37, 6, 4).astype("float32")
adjacency = (np.random.rand(37, 6, 6) > 0.6).astype("float32")
lengths = np.random.randint(2, 7, 37).astype("int32")
y = (nodes.sum(axis=(1, 2)) > 12).astype("float32")[:, None]
a, b, c = keras.Input((6, 4)), keras.Input((6, 6)), keras.Input((), dtype="int32")
h = Readout()([layers.Dense(8, "relu")(a), b, c])
model = keras.Model([a, b, c], layers.Dense(1, "sigmoid")(h))
model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(curve="PR", name="auc"), "accuracy"])
history = model.fit(
    [nodes, adjacency, lengths], y, epochs=2, batch_size=10, class_weight={0: 1.0, 1: 0.5}, shuffle=False
)
record(history=history.history, weights=model.get_weights())
