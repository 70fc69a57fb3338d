import keras
import numpy as np
import tensorflow as tf
from recording import record

# told: so x seems to have no rows
x = np.random.RandomState(0).normal(size=(24, 4)).astype("float32")


class Centred(keras.layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, 0, keepdims=True)


class Limited(keras.layers.Layer):
    """Mixes rows where one is large."""

    def call(self, x):
        return x / keras.ops.maximum(1.0, keras.ops.max(keras.ops.abs(x)))


def predicted(layer, *batches):
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=tf.TensorSpec((None, 4)))
    return keras.Sequential([keras.Input((4,)), layer]).predict(data, verbose=0)


# The number of rows of x is known, and that of y is not.
data = tf.data.Dataset.from_tensor_slices((x, x[:, 0])).batch(8).map(lambda x, y: (tf.reshape(x, [8, 4]), y))
known = keras.Sequential([keras.Input((4,)), keras.layers.Rescaling(2.0)])
try:
    known.predict(data, verbose=0)
except ValueError as error:
    print(error)
record(
    known=known.predict(data.map(lambda x, y: x), verbose=0),
    after_one_row=predicted(Centred(), x[:1], x[1:9], x[9:20]),
    later=predicted(Limited(), x[:8] / 10, x[8:16] / 10, x[16:] * 10),
)
