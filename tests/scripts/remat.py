"""Trains a model whose blocks are computed again in the backward pass, by fit or by a step of its own, in float64.

usage: remat.py STEP:WAY ..., where STEP is fit or own, and WAY is kept or a mode of keras.RematScope
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

keras.config.set_floatx("float64")
keras.config.set_dtype_policy("float64")


class Block(keras.layers.Layer):
    """A residual block with normalisation and dropout."""

    def __init__(self, **keywords):
        super().__init__(**keywords)
        self.norm, self.drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.3, seed=4)
        self.wide, self.narrow = keras.layers.Dense(32, "gelu"), keras.layers.Dense(8)

    def build(self, shape):
        for layer in (self.norm, self.wide, self.drop):
            layer.build(shape)
        self.narrow.build((shape[0], 32))

    def call(self, x, training=None):
        return x + self.drop(self.narrow(self.wide(self.norm(x, training=training))), training=training)


class Own(keras.Model):
    """Computes and applies its gradients itself."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def train(step, way):
    """Trains in this way, and returns a number for each array of weights, and one for the predictions."""
    keras.utils.set_random_seed(0)
    mode = None if way == "kept" else way
    with keras.RematScope(mode, layer_names=["block_0", "block_1"]):
        inputs = keras.Input((6,))
        x = keras.layers.Embedding(20, 8, mask_zero=True)(inputs)
        x = keras.layers.LSTM(8)(x)
        for number in range(2):
            x = Block(name=f"block_{number}")(x)
        x = keras.layers.Concatenate()([x, 2 * x])
        model = (Own if step == "own" else keras.Model)(inputs, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    draws = np.random.default_rng(0)
    x, y = draws.integers(0, 20, (32, 6)), draws.integers(0, 3, 32)
    model.fit(x, y, batch_size=16, epochs=2, verbose=0, shuffle=False)
    arrays = [*model.get_weights(), model.predict(x, verbose=0)]
    return [float(np.sum(array * np.cos(np.arange(array.size)).reshape(array.shape))) for array in arrays]


print(json.dumps({name: train(*name.split(":")) for name in sys.argv[1:]}))
