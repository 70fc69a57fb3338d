"""A script with its own checkpoints: started twice in one process, the second time it continues."""

import argparse
import glob
import os
import re

import keras
import numpy as np
from recording import record


def latest(folder):
    found = glob.glob(os.path.join(folder, "epoch-*.keras"))
    return max(found, key=lambda name: int(re.search(r"epoch-(\d+)", name)[1]), default=None)


def build():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(10, "relu"), keras.layers.Dense(3, "softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(args, until):
    os.makedirs(args.folder, exist_ok=True)
    path, first = latest(args.folder), 0
    if path is None:
        keras.utils.set_random_seed(11)
        model = build()
    else:
        model = keras.models.load_model(path)
        first = int(re.search(r"epoch-(\d+)", path)[1])
        print("continue after epoch", first)
    saver = keras.callbacks.ModelCheckpoint(os.path.join(args.folder, "epoch-{epoch:02d}.keras"))
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(45, 6)).astype("float32"), rng.integers(0, 3, 45)
    history = model.fit(
        x, y, epochs=until, initial_epoch=first, batch_size=10, shuffle=False, verbose=0, callbacks=[saver]
    )
    for old in sorted(glob.glob(os.path.join(args.folder, "*.keras")))[:-2]:
        os.remove(old)
    return model, history


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default="checkpoints")
    args = parser.parse_args()
    _, one = train(args, 2)
    model, two = train(args, 5)
    record(one=one.history, two=two.history, epochs=two.epoch, left=sorted(os.listdir("checkpoints")))
    record(weights=model.get_weights(), step=int(model.optimizer.iterations.numpy()))
