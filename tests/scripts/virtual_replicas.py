"""A script as users write them, with what a compiled model usually has; for runs on virtual replicas.

python -m tfdist.run --virtual_replicas=8 tests/scripts/virtual_replicas.py --out=FILE [--kill_at=STEP] [--parts=1]

Writes the histories, the values of evaluations and hashes of the weights; of the first model only with --parts=1.
"""

import argparse
import hashlib
import json
import os
import signal

import keras
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--out")
parser.add_argument("--kill_at", type=int, default=0)
parser.add_argument("--parts", type=int, default=2)
flags = parser.parse_args()
random = np.random.default_rng(0)
x, labels = random.normal(size=(150, 8, 8, 1)).astype("float32"), random.integers(0, 5, 150)
prices = (random.normal(size=150) ** 2 * 3e5).astype("float32")
weights = random.uniform(0.2, 2.0, 150).astype("float32")


class Kill(keras.callbacks.Callback):
    """Kills the process in a batch, as an unplugged machine."""

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == flags.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def layers(image):
    """A small convolutional network with batch normalisation, dropout and a penalty."""
    features = keras.layers.Conv2D(8, 3, use_bias=False)(image)
    features = keras.layers.ReLU()(keras.layers.BatchNormalization()(features))
    features = keras.layers.Dropout(0.3)(keras.layers.Flatten()(features))
    return keras.layers.Dense(16, "relu", kernel_regularizer="l2")(features)


def digest(model):
    """The hash of the weights and of the optimizer's variables."""
    arrays = [*model.get_weights(), *(one.numpy() for one in model.optimizer.variables)]
    return hashlib.sha256(b"".join(np.asarray(one).tobytes() for one in arrays)).hexdigest()


# Arrays, with a smaller batch at the end of each epoch.
keras.utils.set_random_seed(1)
image = keras.Input((8, 8, 1))
classifier = keras.Model(image, keras.layers.Dense(5, "softmax")(layers(image)))
classifier.compile(
    "adam", "sparse_categorical_crossentropy", metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
)
callbacks = [Kill()] if flags.kill_at else []
first = classifier.fit(
    x, labels, batch_size=32, epochs=3, validation_data=(x[:50], labels[:50]), callbacks=callbacks, verbose=0
)
found = [first.history, classifier.evaluate(x, labels, batch_size=64, verbose=0), digest(classifier)]

if flags.parts > 1:
    # A dataset that shuffles, two outputs, large values, weights, metrics whose sums are no whole numbers.
    keras.utils.set_random_seed(2)
    image = keras.Input((8, 8, 1))
    features = layers(image)
    outputs = {
        "price": keras.layers.Dense(1, name="price")(features),
        "kind": keras.layers.Dense(1, "sigmoid", name="kind")(features),
    }
    both = keras.Model(image, outputs)
    both.compile(
        keras.optimizers.SGD(1e-12, momentum=0.9, global_clipnorm=1.0),
        {"price": "mse", "kind": "binary_crossentropy"},
        metrics={"price": ["mae", keras.metrics.RootMeanSquaredError()], "kind": [keras.metrics.AUC(), "accuracy"]},
        weighted_metrics={"price": ["mape"], "kind": []},
    )
    targets = {"price": prices[:, None], "kind": (labels[:, None] > 2).astype("float32")}
    data = tf.data.Dataset.from_tensor_slices((x, targets, {"price": weights, "kind": weights}))
    data = data.shuffle(150, seed=5).map(lambda image, *rest: (image * 2.0, *rest)).batch(30)
    second = both.fit(data, epochs=2, verbose=0)
    found += [second.history, both.evaluate(data, verbose=0, return_dict=True), digest(both)]
if flags.out:
    with open(flags.out, "w") as file:
        json.dump(found, file)
