"""A script that trains a compiled model with `tfdist.fit`, then evaluates it and predicts.

usage: python tests/golden/script.py RESULT.json WORKDIR LOGICAL_DEVICES
"""

import hashlib
import json
import sys

import keras
import numpy as np

import tfdist
from tests.golden import parts
from tfdist import config as c


def main(result: str, workdir: str, devices: int) -> None:
    """Trains, and writes what came out: history, evaluation, prediction and the SHA-256 of the weights."""
    cluster = tfdist.connect(c.ClusterOptions(logical_devices=devices, connect_seconds=240.0), seed=7)
    random = np.random.default_rng(0)
    # In batches of 16 the last has 5 examples.
    x = random.normal(size=(53, 6)).astype("float32")
    y = np.argmax(x[:, :3], axis=1)
    with cluster.scope():
        layers = [
            keras.layers.Dense(8, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3), name="hidden"),
            keras.layers.Dropout(0.2, name="dropout"),
            keras.layers.Dense(3, name="logits"),
        ]
        model = keras.Sequential([keras.Input((6,)), *layers], name="golden")
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        )
    stopping = keras.callbacks.EarlyStopping("val_loss", min_delta=9.0, patience=3, restore_best_weights=True)
    history = tfdist.fit(
        cluster,
        model,
        x,
        y,
        sample_weight=np.linspace(0.5, 1.5, len(x)),
        batch_size=16,
        epochs=6,
        verbose=0,
        callbacks=[stopping, parts.Stop()],
        validation_data=(x[:21], y[:21]),
        validation_batch_size=8,
        workdir=workdir,
        seed=2,
    )
    evaluated = tfdist.evaluate(cluster, model, x, y, batch_size=64, verbose=0, return_dict=True)
    predicted = tfdist.predict(cluster, model, x, batch_size=16, verbose=0)
    weights = hashlib.sha256(b"".join(array.tobytes() for array in model.get_weights())).hexdigest()
    found = {"history": history.history, "evaluated": evaluated, "predicted": predicted[-1].tolist()}
    if cluster.is_chief:
        with open(result, "w") as file:
            json.dump({"weights": weights, "values": found}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
