# After keras.io's "Self-supervised contrastive learning with SimSiam", with images that are rows of numbers.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def compute_loss(p, z):
    z = tf.stop_gradient(z)
    p, z = tf.math.l2_normalize(p, axis=1), tf.math.l2_normalize(z, axis=1)
    return -tf.reduce_mean(tf.reduce_sum((p * z), axis=1))


class SimSiam(keras.Model):
    def __init__(self, encoder, predictor):
        super().__init__()
        self.encoder, self.predictor = encoder, predictor
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        ds_one, ds_two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(ds_one), self.encoder(ds_two)
            p1, p2 = self.predictor(z1), self.predictor(z2)
            loss = compute_loss(p1, z2) / 2 + compute_loss(p2, z1) / 2
        learnable = self.encoder.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, learnable), learnable))
        self.loss_tracker.update_state(loss)
        spread = tf.reduce_mean(tf.math.reduce_std(tf.math.l2_normalize(z1, axis=1), axis=0))
        return {"loss": self.loss_tracker.result(), "std_of_the_batch": spread}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.LayerNormalization(), layers.Dense(5)])
predictor = keras.Sequential([keras.Input((5,)), layers.Dense(3, "relu"), layers.Dense(5)])
model = SimSiam(encoder, predictor)
model.compile(optimizer=keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.05, 10), momentum=0.6))
history = model.fit(tf.data.Dataset.from_tensor_slices((x, x + 0.1 * x[::-1])).batch(8), epochs=2)
record(history=history.history, weights=encoder.get_weights(), predictor=predictor.get_weights())
