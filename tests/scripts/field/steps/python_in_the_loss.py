import keras
import numpy as np
import tensorflow as tf
from recording import record


def ranks(y, p):
    """The mean squared error, weighted by the rank of each target in its batch, in NumPy."""
    order = tf.numpy_function(lambda t: np.argsort(np.argsort(t[:, 0])).astype("float32"), [y], tf.float32)
    order = tf.ensure_shape(order, [None])
    return tf.reduce_mean((1.0 + order[:, None] / 10.0) * tf.square(y - p))


keras.utils.set_random_seed(14)
x = np.random.rand(40, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), loss=ranks)
history = model.fit(x, x[:, :1] * 2, epochs=2, batch_size=10, shuffle=False, verbose=0)
record(history=history.history, weights=model.get_weights())
