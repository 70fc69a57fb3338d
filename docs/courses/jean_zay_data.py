"""The flags and the data of jean_zay_fit.py and jean_zay_loop.py: CIFAR-10, or random images in its place."""

import argparse
import os
import pickle

import numpy as np
import tensorflow as tf

SEED = 1234


def flags(description: str) -> argparse.ArgumentParser:
    """Returns a parser of the flags that both programs have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="the folder cifar-10-batches-py; without it, random images")
    parser.add_argument("--images", type=int, default=1024, help="random images to train on, if there is no --data")
    parser.add_argument("--batch", type=int, default=64, help="images per replica in a step")
    parser.add_argument("--replicas", type=int, default=1, help="replicas of all workers")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    return parser


def datasets(options: argparse.Namespace, global_batch: int) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns endless training data and one pass over the test data: images float32 in [0, 1], and labels."""
    train, test = load(options, [f"data_batch_{number}" for number in range(1, 6)]), load(options, ["test_batch"])
    # Shuffle, then batch, with a seed: all workers have the same order, in which TensorFlow divides the batches.
    shuffled = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[1]), seed=SEED)
    batches = shuffled.batch(global_batch, drop_remainder=True).map(scaled).repeat().prefetch(2)
    return batches, tf.data.Dataset.from_tensor_slices(test).batch(global_batch, drop_remainder=True).map(scaled)


def load(options: argparse.Namespace, files: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images, uint8 [n, 32, 32, 3], and labels, int64 [n]."""
    if options.data is None:
        random = np.random.default_rng(len(files))
        shape = (options.images, 32, 32, 3)
        return random.integers(0, 256, shape, np.uint8), random.integers(0, 10, options.images)
    parts = []
    for file in files:
        with open(os.path.join(os.path.expandvars(options.data), file), "rb") as content:
            parts.append(pickle.load(content, encoding="bytes"))
    pixels = np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)
    return pixels.transpose(0, 2, 3, 1), np.concatenate([part[b"labels"] for part in parts]).astype(np.int64)


def scaled(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the images as float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / 255.0, labels
