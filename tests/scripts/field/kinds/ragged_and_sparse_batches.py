import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
words = [[(7 * i + j) % 9 + 1 for j in range(i % 4 + 1)] for i in range(45)]
counts, y = np.zeros((45, 10), "float32"), np.arange(45, dtype="float32") / 45
for row, of_row in zip(counts, words, strict=True):
    row[of_row] += 1
words, counts = tf.ragged.constant(words), tf.sparse.from_dense(counts)


class OfWords(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.dense = keras.layers.Embedding(10, 4), keras.layers.Dense(1)

    def call(self, x):
        x = x.to_tensor()
        return self.dense(tf.reduce_sum(self.table(x) * tf.cast(x > 0, tf.float32)[..., None], 1))


class Batches(keras.utils.PyDataset):
    def __init__(self, data):
        super().__init__()
        self.parts = list(data)

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        return self.parts[index]


def results(model, x):
    """Of batches of 8 and a last one of 5; of the same in a PyDataset; and of an array whose batches are all full."""
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model.compile("sgd", "mse", metrics=["mae"])
    history = model.fit(data, epochs=2, verbose=0, validation_data=data).history
    again = model.fit(Batches(data), shuffle=False, verbose=0).history
    of_array = model.fit(x, y, batch_size=15, epochs=2, shuffle=False, verbose=0).history
    predicted = [model.predict(data, verbose=0), model.predict(x, batch_size=15, verbose=0)]
    return [history, again, of_array, model.evaluate(data, verbose=0), [one.tolist() for one in predicted]]


linear = keras.Sequential([keras.Input((10,), sparse=True), keras.layers.Dense(1)])
record(ragged=results(OfWords(), words), sparse=results(linear, counts))
