import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class InBatchSoftmax(keras.losses.Loss):
    """Retrieval: the other items of the batch are negatives, with a correction by their frequency."""

    def __init__(self, log_q, temperature=0.2):
        super().__init__(reduction="sum")
        self.log_q, self.temperature = log_q, temperature

    def call(self, items, embeddings):
        query, candidate = ops.split(embeddings, 2, axis=1)
        scores = ops.matmul(query, ops.transpose(candidate)) / self.temperature
        scores = scores - ops.take(self.log_q, ops.reshape(items, (-1,)))
        same = ops.cast(ops.equal(items, ops.transpose(items)), "float32") - ops.eye(ops.shape(items)[0])
        labels = ops.arange(ops.shape(items)[0])
        return ops.sparse_categorical_crossentropy(labels, scores - 1e4 * same, from_logits=True)


class RecallInBatch(keras.metrics.Metric):
    def __init__(self, k=3):
        super().__init__(name="recall")
        self.k = k
        self.hits, self.seen = (
            self.add_weight(name="h", initializer="zeros"),
            self.add_weight(name="s", initializer="zeros"),
        )

    def update_state(self, items, embeddings, sample_weight=None):
        query, candidate = tf.split(embeddings, 2, axis=1)
        scores = tf.matmul(query, candidate, transpose_b=True)
        hit = tf.math.in_top_k(tf.range(tf.shape(scores)[0]), scores, self.k)
        self.hits.assign_add(tf.reduce_sum(tf.cast(hit, tf.float32)))
        self.seen.assign_add(tf.cast(tf.shape(scores)[0], tf.float32))

    def result(self):
        return self.hits / self.seen


keras.utils.set_random_seed(0)
users, items = np.random.randint(0, 10, 44), np.random.randint(0, 15, (44, 1))
counts = np.bincount(items[:, 0], minlength=15) + 1.0
user, item = keras.Input((), dtype="int64"), keras.Input((1,), dtype="int64")
query = layers.Dense(4)(layers.Embedding(10, 6)(user))
candidate = layers.Dense(4)(layers.Flatten()(layers.Embedding(15, 6)(item)))
model = keras.Model([user, item], layers.Concatenate()([query, candidate]))
log_q = np.log(counts / counts.sum()).astype("float32")
model.compile(keras.optimizers.Adagrad(0.1), InBatchSoftmax(log_q), metrics=[RecallInBatch()])
history = model.fit([users, items], items, epochs=2, batch_size=16, shuffle=False)
record(history=history.history, weights=model.get_weights())
