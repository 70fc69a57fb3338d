import collections

import keras
import numpy as np
import tensorflow as tf
from recording import record

rng = np.random.default_rng(0)
x = rng.normal(size=(80, 4)).astype("float32")
y = (rng.random(80) < 0.2).astype("float32")
x[y == 1] += 1
counts = collections.Counter(y.tolist())
weights = {0: len(y) / (2 * counts[0.0]), 1: len(y) / (2 * counts[1.0])}
bias = np.log(counts[1.0] / counts[0.0])


def metrics():
    return [
        keras.metrics.TruePositives(name="tp"),
        keras.metrics.FalsePositives(name="fp"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
        keras.metrics.AUC(name="auc"),
        keras.metrics.AUC(name="prc", curve="PR"),
    ]


def make_model(output_bias=None):
    if output_bias is not None:
        output_bias = keras.initializers.Constant(output_bias)
    model = keras.Sequential(
        [
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.0),
            keras.layers.Dense(1, activation="sigmoid", bias_initializer=output_bias),
        ]
    )
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.BinaryCrossentropy(), metrics=metrics())
    return model


keras.utils.set_random_seed(0)
model = make_model(output_bias=bias)
first = model.predict(x[:10], verbose=0)
initial = model.evaluate(x, y, batch_size=16, verbose=0)
model.save_weights("initial.weights.h5")
zero = make_model()
zero.build((None, 4))
zero.load_weights("initial.weights.h5")
zero.layers[-1].bias.assign([0.0])
stop = keras.callbacks.EarlyStopping("val_prc", patience=2, mode="max", restore_best_weights=True)
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=4,
    callbacks=[stop],
    validation_data=(x[:20], y[:20]),
    class_weight=weights,
    shuffle=False,
    verbose=0,
)
zeros = zero.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
positive = tf.data.Dataset.from_tensor_slices((x[y == 1], y[y == 1])).shuffle(20, seed=2).repeat()
negative = tf.data.Dataset.from_tensor_slices((x[y == 0], y[y == 0])).shuffle(80, seed=3).repeat()
balanced = tf.data.Dataset.sample_from_datasets([positive, negative], [0.5, 0.5], seed=1).batch(16).prefetch(2)
resampled = model.fit(balanced, epochs=1, steps_per_epoch=4, verbose=0)
record(first=first, initial=initial, history=history.history, zeros=zeros.history)
record(resampled=resampled.history["loss"])
