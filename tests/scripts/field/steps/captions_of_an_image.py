import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Captioner(keras.Model):
    """As Keras' example: a loss of compile without reduction, and an update for each of the captions of an image."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = layers.Dense(8, "relu"), layers.Dense(20, "softmax")
        self.embedding = layers.Embedding(20, 8)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, inputs):
        images, tokens = inputs
        return self.decoder(self.encoder(images)[:, None] + self.embedding(tokens))

    def compute(self, images, captions):
        return tf.reduce_mean(self.loss(captions[:, 1:], self((images, captions[:, :-1]))))

    def train_step(self, data):
        images, captions = data
        total = 0.0
        for place in range(3):
            with tf.GradientTape() as tape:
                loss = self.compute(images, captions[:, place])
            total += loss
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.loss_tracker.update_state(total)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        images, captions = data
        self.loss_tracker.update_state(sum(self.compute(images, captions[:, place]) for place in range(3)))
        return {"loss": self.loss_tracker.result()}


keras.utils.set_random_seed(0)
images, captions = np.random.rand(24, 12).astype("float32"), np.random.randint(0, 20, (24, 3, 7))
model = Captioner()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(reduction=None))
data = tf.data.Dataset.from_tensor_slices((images, captions)).batch(8)
history = model.fit(data, epochs=2, validation_data=data)
record(history=history.history, weights=model.get_weights(), evaluated=model.evaluate(data))
