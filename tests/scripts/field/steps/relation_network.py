# After relation networks: all pairs of the batch go through a layer, so its rows are no multiple of the batch's.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Relations(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed = keras.Sequential([keras.Input((5,)), layers.Dense(4, "tanh")])
        self.relate = keras.Sequential([keras.Input((8,)), layers.Dense(6, "relu"), layers.Dense(1)])

    def scores(self, x, training):
        h, n = self.embed(x, training=training), tf.shape(x)[0]
        one, other = tf.repeat(h, n, axis=0), tf.tile(h, [n, 1])
        return tf.reshape(self.relate(tf.concat([one, other], axis=1), training=training), [n, n])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            same = tf.cast(y[:, None] == y[None], tf.float32)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(same, self.scores(x, True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def test_step(self, data):
        return {"score": tf.reduce_mean(self.scores(data[0], False))}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 5).astype("float32"), np.random.randint(0, 3, 34)
model = Relations()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, validation_data=(x[:9], y[:9]))
record(history=history.history, weights=model.get_weights())
