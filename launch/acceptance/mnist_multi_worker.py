"""An acceptance test of a cluster: Keras' `fit` on several workers, like the TensorFlow test of the EESSI test suite.

    srun python launch/acceptance/mnist_multi_worker.py --data=mnist.npz        # 4,096 images a worker, 4 x 25 steps
    python -m tfdist.launch --workers=2 -- launch/acceptance/mnist_multi_worker.py --batch=32 --steps=20

The same network, optimizer, batch per worker, steps and checks: each worker connects and finishes its `fit`, and the
accuracy on the test images is more than 0.2, twice that of a guess. It prints the lines that the check of the suite
looks for, and images per second. Exit code 1: the network has not learned, or the devices are of another type than
--device. tfdist reads the variables of the launcher and chooses devices; the program of the suite does both by hand,
with mpi4py. Without --data: the digits of tfdist, in 28x28 pixels.
"""

import argparse
import sys
import time

import numpy as np

import tfdist  # Before TensorFlow, whose log lines at import it hides.

LEARNED = 0.2

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", help="mnist.npz, as keras.datasets.mnist stores it")
parser.add_argument("--device", choices=("any", "cpu", "gpu"), default="any", help="fail on devices of another type")
parser.add_argument("--batch", type=int, default=4096, help="images in a step of a worker")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--steps", type=int, default=25, help="steps of an epoch")


def load(path):
    """Returns training and test images, float32 [n, 28, 28] in [0, 1], with their labels, int64 [n]."""
    if path:
        with np.load(path, allow_pickle=False) as file:
            train, test = ((file[f"x_{part}"], file[f"y_{part}"]) for part in ("train", "test"))
        largest = 255
    else:
        from tfdist.zoo.sources import digits

        train, test = (read(digits(part)) for part in ("train", "test"))
        largest = 16
    return [(images / np.float32(largest), labels.astype("int64")) for images, labels in (train, test)]


def read(source):
    """Returns images, enlarged from 8x8 pixels, and labels."""
    batch = source.read(np.arange(len(source)))
    images = np.asarray(batch["image"])[..., 0].repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(images, ((0, 0), (2, 2), (2, 2))), np.asarray(batch["label"])


def forever(images, labels, batch):
    """Returns an endless dataset of shuffled batches."""
    import tensorflow as tf

    examples = tf.data.Dataset.from_tensor_slices((images, labels))
    return examples.shuffle(len(labels), seed=1).repeat().batch(batch)


def build():
    """Returns the compiled network of the suite."""
    import keras
    from keras import layers, losses, optimizers

    model = keras.Sequential(
        [
            layers.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=optimizers.Adam(0.001), metrics=["accuracy"])
    return model


def main():
    """Trains and evaluates; returns the exit code."""
    options = parser.parse_args()
    cluster = tfdist.connect()
    say(cluster, "Set TF_CONFIG for rank {rank}: tfdist has connected {workers} workers")
    if options.device not in ("any", cluster.device_type.lower()):
        cluster.print(f"The devices are of type {cluster.device_type}, and --device={options.device}.")
        return 1
    (images, labels), (test_images, test_labels) = load(options.data)
    batch = options.batch * cluster.num_workers
    with cluster.scope():
        model = build()
    started = time.perf_counter()
    data = forever(images, labels, batch)
    tfdist.fit(cluster, model, data, epochs=options.epochs, steps_per_epoch=options.steps, verbose=2)
    seconds = time.perf_counter() - started
    say(cluster, "Keras fit completed!")
    cluster.print(f"Total training time: {seconds}")
    cluster.print(f"Performance: {batch * options.steps * options.epochs / seconds} img/s")
    found = tfdist.evaluate(cluster, model, test_images, test_labels, batch_size=batch, return_dict=True)
    cluster.print(f"Final loss: {found['loss']}\nFinal accuracy: {found['accuracy']}")
    if found["accuracy"] <= LEARNED:
        cluster.print(f"The network has not learned: its accuracy must be more than {LEARNED}.")
        return 1
    return 0


def say(cluster, text):
    """Prints one line for each worker, on the chief, and only if all workers get here."""
    for rank in cluster.all_gather([cluster.rank])[:, 0]:
        cluster.print(f"Rank {rank}: {text.format(rank=rank, workers=cluster.num_workers)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
