import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record

LETTERS = np.array(list("-abcdef"))


class WordErrors(keras.metrics.Metric):
    """Levenshtein distance of decoded texts, in Python, and the longest of them."""

    def __init__(self, name="word_errors"):
        super().__init__(name=name)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = tf.numpy_function(self.distances, [y_true, ops.argmax(y_pred, axis=-1)], tf.float32)
        self.total.assign_add(tf.reduce_sum(values))
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    @staticmethod
    def distances(true, predicted):
        found = []
        for t, p in zip(true, predicted):
            a, b = "".join(LETTERS[t]).strip("-"), "".join(LETTERS[p]).strip("-")
            row = list(range(len(b) + 1))
            for i, one in enumerate(a, 1):
                last, row[0] = row[0], i
                for j, other in enumerate(b, 1):
                    last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (one != other))
            found.append(row[-1])
        return np.array(found, np.float32)

    def result(self):
        return self.total / self.count


class Longest(keras.metrics.Metric):
    def __init__(self, name="longest"):
        super().__init__(name=name, dtype="float32")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        lengths = ops.sum(ops.cast(ops.argmax(y_pred, axis=-1) > 0, "float32"), axis=-1)
        self.value.assign(ops.maximum(self.value, ops.max(lengths)))

    def result(self):
        return ops.convert_to_tensor(self.value)


keras.utils.set_random_seed(0)
x = np.random.rand(34, 5, 4).astype("float32")
y = np.random.randint(0, 7, (34, 5))
model = keras.Sequential([keras.Input((5, 4)), layers.GRU(8, return_sequences=True), layers.Dense(7, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=[WordErrors(), Longest()])
history = model.fit(x, y, epochs=2, batch_size=12, shuffle=False, validation_data=(x[:10], y[:10]))
record(history=history.history)
