"""Measures "up to rounding": how far the weights of two and four workers are from those of one, step by step.

usage: python docs/rounding.py [--models=mlp,mnist,resnet20] [--dtypes=float32,float64] [--workers=1,2,4]
       [--steps=5,20,100,360] [--same_start] [--directory=DIR]

Each model is trained by `tfdist.fit` on one, two and four workers of this machine: with the same data, initial weights
and global batch, and without random numbers in the model. The table has, after some steps, the largest difference of
a weight or a moving statistic from that of one worker. Of the first two models it also counts, over 256 images, the
decisions that differ: units whose ReLU is on in one run only, and windows whose largest value is at another place.
"""

import argparse
import itertools
import math
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist import config as config_lib
from tfdist.zoo import models, sources

BATCH_SIZE = 64


def digits(size: int, margin: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns 1,280 digits in [0, 1], enlarged to `size` pixels with a blank margin: [n, s, s, 1], and labels [n]."""
    source = sources.digits("train")
    batch = source.read(tf.range(1280, dtype=tf.int64))
    images = tf.image.resize(tf.cast(batch["image"], tf.float32) / 16, [size - 2 * margin] * 2)
    return np.pad(images, [(0, 0), (margin, margin), (margin, margin), (0, 0)]), batch["label"].numpy()


# Name -> the model, and the size of its images.
MODELS = {
    "mlp": (lambda: models.mlp(10, (8, 8, 1)), 8),
    "mnist": (lambda: models.mnist_cnn(10), 28),
    "resnet20": (lambda: models.cifar_resnet(20, input_shape=(16, 16, 1), normalization="sync_batch"), 16),
}
# The models whose decisions are counted.
COUNTED = ("mlp", "mnist")
TITLES = {"mlp": "MLP", "mnist": "MNIST network", "resnet20": "ResNet-20"}


def build(name: str, dtype: str, *, same_start: bool = False) -> keras.Model:
    """Returns a model all of whose layers compute in `dtype`.

    Args:
        same_start: whether the initial weights of float64 are those of float32; otherwise they are drawn in float64.
    """
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("float32" if same_start else dtype)
    if not same_start:
        return clone(MODELS[name][0](), dtype)
    original = clone(MODELS[name][0](), "float32")
    model = clone(original, dtype)
    model.set_weights(original.get_weights())
    return model


def clone(model: keras.Model, dtype: str) -> keras.Model:
    """Returns a copy whose layers compute in `dtype`."""

    def with_dtype(layer: keras.Operation) -> keras.Operation:
        options = {"dtype": dtype} if isinstance(layer, keras.Layer) else {}  # An operation has the type of its input.
        return type(layer).from_config(layer.get_config() | options)

    return keras.models.clone_model(model, clone_function=with_dtype)


def data(name: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images and labels for a model."""
    size = MODELS[name][1]
    images, labels = digits(size, margin=2 if size > 8 else 0)
    return images.astype(dtype), labels


def train(directory: pathlib.Path, flags: argparse.Namespace) -> None:
    """Trains the models on this topology; the chief writes MODEL-DTYPE-WORKERS-STEP.npz."""
    cluster = tfdist.connect(config_lib.ClusterOptions(connect_seconds=600))
    epoch_steps = math.gcd(*flags.steps)
    for name, dtype in itertools.product(flags.models, flags.dtypes):
        prefix = f"{name}-{dtype}-{cluster.num_workers}"
        if (directory / f"{prefix}-{max(flags.steps)}.npz").exists():
            continue
        keras.backend.clear_session()
        keras.config.set_floatx(dtype)
        with cluster.scope():
            model = build(name, dtype, same_start=flags.same_start)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)

        def save(epoch: int, logs: dict, model=model, prefix=prefix) -> None:
            if (step := epoch_steps * (epoch + 1)) in flags.steps:
                np.savez(directory / f"{prefix}-{step}.npz", *model.get_weights())

        images, labels = data(name, dtype)
        tfdist.fit(
            cluster,
            model,
            images,
            labels,
            batch_size=BATCH_SIZE,
            steps_per_epoch=epoch_steps,
            epochs=max(flags.steps) // epoch_steps,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=save)],
            verbose=0,
        )


def weights(directory: pathlib.Path, name: str, dtype: str, workers: int, step: int) -> list[np.ndarray]:
    """Returns what `train` wrote."""
    with np.load(directory / f"{name}-{dtype}-{workers}-{step}.npz") as file:
        return [file[key] for key in file.files]


def difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Returns the largest difference of a weight."""
    return max(float(np.abs(one - other).max()) for one, other in zip(first, second, strict=True))


def decisions(model: keras.Model, values: Sequence[np.ndarray], images: np.ndarray) -> list[np.ndarray]:
    """Returns, for the layers in order, which ReLUs are on, and at which place each window has its largest value."""
    model.set_weights(values)
    chosen = [
        layer
        for layer in model.layers
        if isinstance(layer, keras.layers.MaxPooling2D) or getattr(layer, "activation", None) is keras.activations.relu
    ]
    if not chosen:
        return []
    found = []
    for layer, output, given in zip(
        chosen,
        *keras.Model(model.inputs, [[one.output for one in chosen], [one.input for one in chosen]])([images]),
        strict=True,
    ):
        if isinstance(layer, keras.layers.MaxPooling2D):
            size = layer.pool_size[0]
            found.append(tf.nn.max_pool_with_argmax(tf.cast(given, tf.float64), size, size, "VALID").argmax.numpy())
        else:
            found.append(np.asarray(output) > 0)
    return found


def report(directory: pathlib.Path, flags: argparse.Namespace) -> None:
    """Prints the table, and how many decisions differ."""
    print("| model | type | compared |", " | ".join(f"{step} steps" for step in flags.steps), "|")
    print("| --- | --- | --- |", " | ".join("---" for _ in flags.steps), "|")
    lines = []
    for name, dtype in itertools.product(flags.models, flags.dtypes):
        model, (images, _) = build(name, dtype), data(name, dtype)
        pairs = [(f"{workers} workers with one", (dtype, workers)) for workers in flags.workers[1:]]
        if flags.same_start and dtype == "float32" and "float64" in flags.dtypes:
            pairs.append(("one worker with float64", ("float64", flags.workers[0])))
        for title, other in pairs:
            cells, differing = [], []
            for step in flags.steps:
                first, second = (weights(directory, name, *one, step) for one in ((dtype, flags.workers[0]), other))
                cells.append(f"{difference(first, second):.0e}")
                found = [decisions(model, one, images[:256]) if name in COUNTED else [] for one in (first, second)]
                differing.append(sum(int(np.sum(a != b)) for a, b in zip(*found, strict=True)))
            print(f"| {TITLES[name]} | {dtype} | {title} |", " | ".join(cells), "|", flush=True)
            if found[0]:
                total = sum(one.size for one in found[0])
                lines.append(f"{TITLES[name]}, {dtype}, {title}: {differing} of {total:,} decisions differ")
    print("", *lines, sep="\n")


def numbers(text: str) -> list[int]:
    """Returns the integers of "1,2,4"."""
    return [int(number) for number in text.split(",")]


def main() -> None:
    """Trains on each topology, in processes of its own, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=["mlp", "mnist", "resnet20"], type=lambda text: text.split(","))
    parser.add_argument("--dtypes", default=["float32", "float64"], type=lambda text: text.split(","))
    parser.add_argument("--workers", default=[1, 2, 4], type=numbers)
    parser.add_argument("--steps", default=[5, 20, 100, 360], type=numbers)
    parser.add_argument("--same_start", action="store_true", help="initial weights of float64 as in float32")
    parser.add_argument("--directory", help="for the weights; what is there already is not trained again")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(flags.directory or temporary).absolute()
        if flags.train:
            train(directory, flags)
            return
        directory.mkdir(parents=True, exist_ok=True)
        given = [word for word in sys.argv[1:] if not word.startswith("--directory")]
        for workers in flags.workers:
            launcher = [sys.executable, "-m", "tfdist.launch", f"--workers={workers}", "--", __file__]
            subprocess.run([*launcher, "--train", f"--directory={directory}", *given], check=True)
        report(directory, flags)


if __name__ == "__main__":
    main()
