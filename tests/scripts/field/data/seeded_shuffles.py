import keras
import numpy as np
import tensorflow as tf
from recording import record

rng = np.random.default_rng(0)
x, y = rng.normal(size=(48, 3)).astype("float32"), rng.normal(size=(48, 1)).astype("float32")


def half(first, seed):
    rows = slice(first, first + 24)
    return tf.data.Dataset.from_tensor_slices((x[rows], y[rows])).shuffle(24, seed=seed)


def double(x, y):
    return 2 * x, y


def train(dataset, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model.fit(dataset, epochs=2, verbose=0, **options).history["loss"]


keras.utils.set_random_seed(7)
of_global_seed = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).batch(7, drop_remainder=True)
sampled = tf.data.Dataset.sample_from_datasets([half(0, 1).repeat(), half(24, 2).repeat()], [0.3, 0.7], seed=3)
record(
    of_global_seed=train(of_global_seed),
    sampled=train(sampled.batch(8).map(double), steps_per_epoch=5),
    joined=train(half(0, 1).concatenate(half(24, 2)).batch(8).map(double)),
)
