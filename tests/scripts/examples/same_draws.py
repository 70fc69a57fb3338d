"""Random numbers of a step that depend on the step and the example, and not on the replica that has the example.

For comparisons of a script on one device and on several. Under Keras and under tfdist, each line of the script that
draws gets its rows of one tensor for the global batch, which is a function of (line, step).
"""

import contextlib
import functools
import sys

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import random as backend

from tfdist.config.patching import patch
from tfdist.keras_fit.whole_batch import global_view

# More rows than a script draws in one call.
ROWS = 128


@contextlib.contextmanager
def installed(script):
    """Replaces what the examples draw by: tf.random, keras.random and dropout. Initializers keep their own numbers.

    Arrays are not shuffled, and batch normalisation takes its statistics over all replicas: otherwise several replicas
    train another model than one. Layers compute in float64: in float32 the sums of several replicas are rounded
    differently, and a ReLU or a step of Adam turns that into another weight.

    Args:
        script: the path of the script.
    """
    fitted = []

    def fit(original, model, x, *args, **keywords):
        fitted.append(model)
        x = x.map(in_float64) if isinstance(x, tf.data.Dataset) else x
        if "validation_data" in keywords:
            keywords["validation_data"] = keywords["validation_data"].map(in_float64)
        return original(model, x, *args, **keywords | {"shuffle": False})

    def draw(distribution, original, shape, *args, seed=None, **keywords):
        if isinstance(seed, int):  # An initializer's.
            return original(shape, *args, seed=seed, **keywords)
        given = {name: value for name, value in keywords.items() if value is not None} | {"dtype": "float64"}
        whole = tf.concat([[ROWS], tf.convert_to_tensor(shape)[1:]], axis=0)
        address = tf.stack([tf.constant(line_of(script), tf.int64), steps_of(fitted)])
        return tf.gather(distribution(whole, address, *args, **given), rows_of_global_batch(shape[0]))

    def dropout(original, inputs, rate, noise_shape=None, seed=None):
        assert noise_shape is None
        keep = draw(tf.random.stateless_uniform, None, tf.shape(inputs)) >= rate
        return tf.where(keep, inputs / (1 - rate), tf.zeros_like(inputs))

    def synchronized(original, layer, *args, **keywords):
        layer.synchronized = True
        return original(layer, *args, **keywords)

    normal = functools.partial(draw, tf.random.stateless_normal)
    uniform = functools.partial(draw, tf.random.stateless_uniform)
    keras.config.set_floatx("float64")
    with contextlib.ExitStack() as stack:
        stack.callback(keras.config.set_floatx, "float32")
        for owner, name, function in (
            *((owner, "normal", normal) for owner in (tf.random, backend)),
            *((owner, "uniform", uniform) for owner in (tf.random, backend)),
            (backend, "dropout", dropout),
            (keras.layers.BatchNormalization, "build", synchronized),
            (keras.Model, "fit", fit),
        ):
            stack.enter_context(patch(owner, name, function))
        yield


def in_float64(*batch):
    """Returns a batch whose floating-point tensors are float64."""
    cast = tf.nest.map_structure(lambda one: tf.cast(one, tf.float64) if one.dtype.is_floating else one, batch)
    return cast if len(cast) > 1 else cast[0]


def line_of(script):
    """Returns the innermost line of the script that is running; 0: none is."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != script:
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


def steps_of(fitted):
    """Returns the steps that the fitted model's first optimizer has made, int64 []."""
    if not fitted:
        return tf.zeros([], tf.int64)
    optimizer = getattr(fitted[-1], "d_optimizer", fitted[-1].optimizer)
    return tf.cast(tf.convert_to_tensor(optimizer.iterations), tf.int64)


def rows_of_global_batch(count):
    """Returns where the first `count` rows of this replica are in the global batch, int32 [count].

    A step may draw for several tensors of the batch at once: their rows follow each other.
    """
    drawn, view = tf.range(count), global_view.of_step()
    if view is None or not view.on_rows:
        return drawn
    rows = view.rows
    own, low, total = (tf.cast(value, tf.int32) for value in (tf.maximum(rows.count, 1), rows.low, rows.total))
    return drawn // own * total + low + drawn % own
