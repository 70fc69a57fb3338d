import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

TOKEN = 3


class Inversion(keras.Model):
    """As Keras' example of textual inversion: of an embedding only the row of a new token is trained."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def train_step(self, data):
        tokens, targets = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.reduce_mean(self.encoder(tokens), axis=1) - targets))
        weights = self.encoder.trainable_weights
        gradients = tape.gradient(loss, weights)
        rows = tf.where((gradients[0].indices == TOKEN)[:, None], gradients[0].values, 0.0)
        gradients[0] = tf.IndexedSlices(rows, gradients[0].indices, gradients[0].dense_shape)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


keras.utils.set_random_seed(0)
tokens, targets = np.random.randint(0, 12, (24, 5)), np.random.rand(24, 6).astype("float32")
encoder = keras.Sequential([keras.Input((5,), dtype="int32"), layers.Embedding(12, 6), layers.Dense(6, "tanh")])
model = Inversion(encoder)
model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=0.05))
history = model.fit(tf.data.Dataset.from_tensor_slices((tokens, targets)).batch(8), epochs=3)
record(history=history.history, weights=encoder.get_weights())
