"""A class that holds the model and its step, with batch normalisation: plain, or with tfdist's lines."""

import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")


class Images(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return np.random.default_rng(index).random((10, 6)).astype("float32")


class Trainer:
    def __init__(self):
        middle = [
            keras.layers.Dense(4, use_bias=False, kernel_regularizer="L2"),
            keras.layers.BatchNormalization(synchronized=True),
        ]
        self.model = keras.Sequential([keras.Input((6,)), *middle, keras.layers.ReLU(), keras.layers.Dense(6)])
        self.optimizer = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 20), momentum=0.9)
        self.error = keras.metrics.MeanAbsoluteError()
        self.history = []

    def train(self, x):
        with tf.GradientTape() as tape:
            output = self.model(x, training=True)
            loss = keras.losses.MeanSquaredError()(x, output) + sum(self.model.losses)
        gradients = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        self.error.update_state(x, output)
        return {"loss": loss}

    def run(self):
        data = Images()
        step = tfdist.step(self.train) if tfdist else self.train
        for _epoch in range(3):
            for batch in tfdist.batches(data) if tfdist else (data[index] for index in range(len(data))):
                self.history.append(float(step(batch)["loss"]))
            self.history.append(float(self.error.result()))
            self.error.reset_state()


keras.utils.set_random_seed(0)
trainer = Trainer()
trainer.run()

if __name__ == "__main__":
    from recording import record

    record(history=trainer.history, weights=trainer.model.get_weights())
