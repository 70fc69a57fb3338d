"""Models with a `train_step` of their own, after Keras' public examples, on made-up data of the same kind.

What the examples draw at random comes with the data here, so that trainings on one replica and on several compare.
"""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.uniform(size=(45, 8, 8, 1)).astype("float32")
NOISE = RANDOM.normal(size=(45, 6)).astype("float32")


class VAE(keras.Model):
    """https://keras.io/examples/generative/vae, with a test_step, a penalty of a layer, and a count of steps."""

    def __init__(self):
        super().__init__()
        image = keras.Input((8, 8, 1))
        x = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(image)
        x = layers.Dense(8, activation="relu", kernel_regularizer="l2")(layers.Flatten()(x))
        self.encoder = keras.Model(image, [layers.Dense(6)(x), layers.Dense(6)(x)])
        self.decoder = keras.Sequential(
            [
                layers.Dense(16, activation="relu"),
                layers.Reshape((4, 4, 1)),
                layers.Conv2DTranspose(1, 3, activation="sigmoid", strides=2, padding="same"),
            ]
        )
        self.total_loss_tracker = keras.metrics.Mean(name="loss")
        self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")
        self.error = keras.metrics.MeanAbsoluteError(name="error")
        self.steps = tf.Variable(0)

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.kl_loss_tracker, self.error]

    def losses_of(self, data):
        images, noise = data
        z_mean, z_log_var = self.encoder(images, training=True)
        reconstruction = self.decoder(z_mean + ops.exp(0.5 * z_log_var) * noise)
        reconstruction_loss = ops.mean(
            ops.sum(keras.losses.binary_crossentropy(images, reconstruction), axis=(1, 2)),
        )
        kl_loss = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        kl_loss = ops.mean(ops.sum(kl_loss, axis=1))
        self.error.update_state(images, reconstruction)
        return reconstruction_loss + kl_loss + sum(self.losses), kl_loss

    def report(self, total_loss, kl_loss):
        self.total_loss_tracker.update_state(total_loss)
        self.kl_loss_tracker.update_state(kl_loss)
        return {m.name: m.result() for m in self.metrics}

    def train_step(self, data):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([variable.value for variable in self.trainable_weights])
            total_loss, kl_loss = self.losses_of(data)
        grads = tape.gradient(total_loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        self.steps.assign_add(1)
        return self.report(total_loss, kl_loss)

    def test_step(self, data):
        return self.report(*self.losses_of(data))


class Clipped(keras.Model):
    """Gradients of single examples by a vectorized map."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(8, activation="tanh"), layers.Dense(3)
        self.hidden.build((None, 6))
        self.last.build((None, 8))

    def call(self, x):
        return self.last(self.hidden(x))

    def train_step(self, data):
        x, y = data
        weights = self.trainable_weights

        def of_example(example):
            inputs, target = example
            with tf.GradientTape() as tape:
                loss = ops.sum(ops.square(self.last(self.hidden(inputs[None])) - target[None]))
            gradients = tape.gradient(loss, weights)
            return [gradient / (1.0 + ops.sum(ops.square(gradients[-1]))) for gradient in gradients]

        clipped = [ops.mean(each, axis=0) for each in tf.vectorized_map(of_example, (x, y))]
        self.optimizer.apply(clipped, weights)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x))
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"squares": loss}


class Wrapped(keras.Sequential):
    """Calls Keras' own step, with the losses and metrics of compile."""

    def train_step(self, data):
        x, y = data
        return super().train_step((x * 2, y))


class Improper(keras.Model):
    """Its step is a function, which cannot be distributed."""

    def __init__(self, step):
        super().__init__()
        self.net = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
        self.step = step

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(keras.losses.mean_squared_error(y, self.net(x)))
        gradients = tape.gradient(loss, self.net.trainable_variables)
        returned = self.step(self, gradients, loss)
        return {"loss": loss} if returned is None else returned

    def test_step(self, data):
        return self.train_step(data)


def assigns(model, gradients, loss):
    number = tf.numpy_function(lambda: np.float32(next(COUNT)), [], tf.float32)  # Another one on each replica.
    number.set_shape([])
    model.net.trainable_variables[0].assign_add(number)


def applies(model, gradients, loss):
    model.optimizer.apply(gradients, model.net.trainable_variables)


def repeats(model, gradients, loss):
    def apply(count):
        applies(model, gradients, loss)
        return count + 1

    tf.while_loop(lambda count: count < 2, apply, [tf.constant(0)])


def returns_vector(model, gradients, loss):
    return {"losses": tf.stack([loss, loss])}


def returns_tensor(model, gradients, loss):
    return tf.stack([loss, loss])


FOREIGN = {}
COUNT = itertools.count()


def applies_foreign(model, gradients, loss):
    FOREIGN["optimizer"].apply(gradients, model.net.trainable_variables)


def batches(*arrays, batch_size=8):
    """The arrays in batches; the last one is smaller, and has an odd number of examples."""
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(batch_size)


def vae():
    def build():
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
        return model

    # The last batch has one example: one of two replicas has none.
    data = batches(IMAGES[:41], NOISE[:41])
    return {"build": build, "data": (data,), "options": {"validation_data": data.take(3)}}


def clipped():
    def build():
        model = Clipped()
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    return {"build": build, "data": (batches(NOISE, NOISE[:, :3]),)}


def wrapped():
    """Arrays whose last batch gives one replica one example more."""

    def build():
        model = Wrapped([keras.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(3, activation="softmax")])
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    labels = np.arange(45) % 3
    options = {"validation_data": (NOISE, labels), "validation_batch_size": 9}
    return {"build": build, "data": (NOISE, labels), "options": options, "batch_size": 8}


CASES = (vae, clipped, wrapped)
