"""A generator of random augmented batches, with its own random numbers, used for several calls of fit."""

import keras
import numpy as np
from recording import record


class Augmenter:
    def __init__(self, images, labels, batch_size, seed=0):
        self.images, self.labels, self.batch_size = images, labels, batch_size
        self.rng = np.random.RandomState(seed)
        self.drawn = 0

    def __iter__(self):
        return self

    def __len__(self):
        return len(self.images) // self.batch_size

    def __next__(self):
        rows = self.rng.choice(len(self.images), self.batch_size, replace=False)
        batch = self.images[rows].copy()
        for image in batch:
            if self.rng.rand() < 0.5:
                image[:] = image[:, ::-1]
        self.drawn += 1
        return batch, self.labels[rows]


def forever(x, y, size):
    position = 0
    while True:
        rows = np.arange(position, position + size) % len(x)
        position += size
        yield x[rows], y[rows]


keras.utils.set_random_seed(0)
images, labels = np.random.rand(40, 6, 6, 1).astype("float32"), np.random.randint(0, 2, 40)
model = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(3, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(2),
    ]
)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
generator = Augmenter(images, labels, 10)
history = model.fit((batch for batch in generator), steps_per_epoch=len(generator), epochs=2, verbose=0)
plain = model.fit(forever(images, labels, 8), steps_per_epoch=5, epochs=2, verbose=0)
score = model.evaluate(forever(images, labels, 8), steps=5, verbose=0)
record(one=history.history, two=plain.history, score=score)
