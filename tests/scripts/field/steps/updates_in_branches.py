import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Accumulating(keras.Model):
    """Gradients that the step sums itself, as in many public scripts, and applies in each third step."""

    def __init__(self, net, every):
        super().__init__()
        self.net, self.every = net, tf.constant(every)
        self.count = tf.Variable(0, trainable=False)
        self.sums = [tf.Variable(tf.zeros_like(one), trainable=False) for one in net.trainable_variables]

    def train_step(self, data):
        x, y = data
        self.count.assign_add(1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.net(x, training=True) - y))
        for one, gradient in zip(self.sums, tape.gradient(loss, self.net.trainable_variables)):
            one.assign_add(gradient)
        tf.cond(tf.equal(self.count, self.every), self.apply_sums, lambda: None)
        return {"loss": loss}

    def apply_sums(self):
        self.optimizer.apply_gradients(zip(self.sums, self.net.trainable_variables))
        self.count.assign(0)
        for one in self.sums:
            one.assign(tf.zeros_like(one))


class Critic(keras.Model):
    """The generator has its own tape and optimizer in a branch, which returns its loss."""

    def __init__(self, net, generator):
        super().__init__()
        self.net, self.generator = net, generator
        self.second = keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=2)
        self.skipped = self.add_weight(shape=(), initializer="zeros", dtype="int64", trainable=False, name="skipped")

    def train_step(self, data):
        x, y = data
        noise = tf.random.stateless_normal((tf.shape(x)[0], 3), (1, 2))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.net(x) - y)) + 0.1 * tf.reduce_mean(self.net(self.generator(noise)))
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(gradients, self.net.trainable_variables)
        if tf.linalg.global_norm(gradients) > 0.4:
            self.skipped.assign_add(1)

        def generate():
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(self.net(self.generator(noise)))
            gradients = tape.gradient(loss, self.generator.trainable_variables)
            self.second.apply_gradients(zip(gradients, self.generator.trainable_variables))
            return loss

        second = tf.cond(self.optimizer.iterations % 3 == 0, generate, lambda: tf.zeros(()))
        return {"loss": loss, "best": second}

    train_step = tf.function(train_step)


def dense(inputs, *widths):
    return keras.Sequential([keras.Input((inputs,)), *(layers.Dense(width, "tanh") for width in widths)])


x, y = np.random.RandomState(0).rand(67, 5), np.random.RandomState(1).rand(67, 1)
keras.utils.set_random_seed(0)
found = []
for model, optimizer in (
    (Accumulating(dense(5, 8, 1), 3), keras.optimizers.Adam(0.01)),
    (Critic(dense(5, 8, 1), dense(3, 5)), keras.optimizers.RMSprop(0.01)),
):
    model.compile(optimizer)
    history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False)
    found.append([history.history, [one.numpy() for one in model.weights], model.optimizer.iterations.numpy()])
record(found=found)
