import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

# draws: noise


class Critic(keras.Model):
    """The generator draws its noise in the branch in which it is trained: alike on all replicas, which stay equal."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((5,)), layers.Dense(8, "tanh"), layers.Dropout(0.1), layers.Dense(1)])
        self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(5, "tanh")])
        self.second, self.seed = keras.optimizers.SGD(0.01), keras.random.SeedGenerator(3)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.net(x, training=True) - y))
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(gradients, self.net.trainable_variables)

        def generate():
            noise = tf.random.normal((tf.shape(x)[0], 3)) + keras.random.normal((1, 3), seed=self.seed)
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(self.net(self.generator(noise), training=True))
            gradients = tape.gradient(loss, self.generator.trainable_variables)
            self.second.apply(gradients, self.generator.trainable_variables)

        tf.cond(self.optimizer.iterations % 2 == 0, generate, lambda: None)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(67, 5), np.random.rand(67, 1)
model = Critic()
model.compile(keras.optimizers.SGD(0.05))
history = model.fit(x, y, batch_size=8, epochs=3, shuffle=False)
record(history=history.history, weights=[np.abs(one).sum() for one in model.get_weights()])
