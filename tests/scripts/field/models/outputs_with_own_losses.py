import functools

import keras
import numpy as np
from keras import ops
from recording import record


def scaled(y, p, factor):
    return factor * ops.mean(ops.abs(y - p), axis=-1)


keras.utils.set_random_seed(12)
x = {"a": np.random.rand(34, 3).astype("float32"), "b": np.random.rand(34, 2).astype("float32")}
y = {"left": x["a"][:, :1], "right": (x["b"].sum(1) > 1).astype("int32"), "far": x["a"]}
a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
both = keras.layers.Dense(8, "gelu")(keras.layers.Concatenate()([a, b]))
model = keras.Model(
    {"a": a, "b": b},
    {
        "left": keras.layers.Dense(1, name="left")(both),
        "right": keras.layers.Dense(2, "softmax", name="right")(both),
        "far": keras.layers.Dense(3, name="far")(both),
    },
)
quarter = functools.partial(scaled, factor=0.25)
quarter.__name__ = "quarter"
model.compile(
    keras.optimizers.Adafactor(0.01),
    loss={"left": lambda t, p: ops.square(t - p), "right": "sparse_categorical_crossentropy", "far": quarter},
    loss_weights={"left": 1.0, "right": 0.5, "far": 2.0},
    metrics={"right": ["accuracy"], "far": [keras.metrics.CosineSimilarity()]},
)
weights = {"left": np.linspace(0, 1, 34), "right": np.ones(34), "far": np.linspace(1, 2, 34)}
history = model.fit(x, y, sample_weight=weights, epochs=2, batch_size=10, shuffle=False, verbose=0)
record(loss=history.history["loss"], accuracy=history.history["right_accuracy"], weights=model.get_weights())
