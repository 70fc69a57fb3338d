"""The data gets harder with each epoch: in Python generators, a variable that a pipeline reads, and a NumPy map."""

import keras
import numpy as np
import tensorflow as tf
from recording import record

LEVEL = {"scale": 1.0, "passes": 0}
noise = tf.Variable(0.5)


def rows():
    LEVEL["passes"] += 1
    for number in range(24):
        x = np.random.default_rng(number).normal(size=3).astype("float32") * LEVEL["scale"]
        yield x, x.sum(keepdims=True)


def batches():
    number = 0
    while True:
        x = np.random.default_rng(number).normal(size=(6, 3)).astype("float32") * LEVEL["scale"]
        number += 1
        yield x, x.sum(1, keepdims=True)


class Harder(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        LEVEL["scale"] = 1.0 + epoch
        noise.assign(0.5 / (1 + epoch))


def scaled(x):
    return (x * LEVEL["scale"]).astype("float32")


def fit(data, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    LEVEL["scale"] = 1.0
    history = model.fit(data, epochs=3, verbose=0, callbacks=[Harder()], **options)
    return history.history["loss"]


signature = (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((1,), tf.float32))
generated = tf.data.Dataset.from_generator(rows, output_signature=signature)
x = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
plain = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True)))
variable = plain.map(lambda x, y: (x + noise, y)).batch(6).prefetch(tf.data.AUTOTUNE)


def numpy_map(x, y):
    return tf.ensure_shape(tf.numpy_function(scaled, [x], tf.float32), (3,)), y


mapped = plain.shuffle(24, seed=3).map(numpy_map, num_parallel_calls=2).batch(6)
known = generated.apply(tf.data.experimental.assert_cardinality(24))
record(known=fit(known.batch(6)), variable=fit(variable), mapped=fit(mapped))
record(unknown=fit(generated.batch(6)))
