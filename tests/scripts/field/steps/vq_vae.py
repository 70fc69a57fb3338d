import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class VectorQuantizer(layers.Layer):
    def __init__(self, num_embeddings, embedding_dim, beta=0.25, **kwargs):
        super().__init__(**kwargs)
        self.embedding_dim, self.num_embeddings, self.beta = embedding_dim, num_embeddings, beta
        init = tf.random_uniform_initializer(seed=1)
        self.embeddings = tf.Variable(
            initial_value=init(shape=(embedding_dim, num_embeddings), dtype="float32"), trainable=True, name="vqvae"
        )

    def call(self, x):
        flat = tf.reshape(x, [-1, self.embedding_dim])
        distances = (
            tf.reduce_sum(flat**2, axis=1, keepdims=True)
            + tf.reduce_sum(self.embeddings**2, axis=0)
            - 2 * tf.matmul(flat, self.embeddings)
        )
        encodings = tf.one_hot(tf.argmin(distances, axis=1), self.num_embeddings)
        quantized = tf.reshape(tf.matmul(encodings, self.embeddings, transpose_b=True), tf.shape(x))
        commitment = tf.reduce_mean((tf.stop_gradient(quantized) - x) ** 2)
        codebook = tf.reduce_mean((quantized - tf.stop_gradient(x)) ** 2)
        self.add_loss(self.beta * commitment + codebook)
        return x + tf.stop_gradient(quantized - x)


class VQVAETrainer(keras.models.Model):
    def __init__(self, train_variance, vqvae, quantizer, **kwargs):
        super().__init__(**kwargs)
        self.train_variance, self.vqvae, self.quantizer = train_variance, vqvae, quantizer
        self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
        self.vq_loss_tracker = keras.metrics.Mean(name="vq_loss")

    @property
    def metrics(self):
        return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.vq_loss_tracker]

    def train_step(self, x):
        with tf.GradientTape() as tape:
            reconstructions = self.vqvae(x)
            reconstruction_loss = tf.reduce_mean((x - reconstructions) ** 2) / self.train_variance
            total_loss = reconstruction_loss + sum(self.vqvae.losses)
        variables = self.vqvae.trainable_variables + [self.quantizer.embeddings]
        grads = tape.gradient(total_loss, variables)
        self.optimizer.apply_gradients(zip(grads, variables))
        self.total_loss_tracker.update_state(total_loss)
        self.reconstruction_loss_tracker.update_state(reconstruction_loss)
        self.vq_loss_tracker.update_state(sum(self.vqvae.losses))
        return {"loss": self.total_loss_tracker.result(), "vqvae_loss": self.vq_loss_tracker.result()}


keras.utils.set_random_seed(3)
images = np.random.rand(44, 8, 8, 1).astype("float32")
quantizer = VectorQuantizer(8, 4, name="vector_quantizer")
inputs = keras.Input((8, 8, 1))
z = layers.Conv2D(4, 3, activation="relu", strides=2, padding="same")(inputs)
decoded = layers.Conv2DTranspose(1, 3, strides=2, padding="same")(quantizer(z))
vqvae = keras.Model(inputs, decoded)
trainer = VQVAETrainer(float(np.var(images)), vqvae, quantizer)
trainer.compile(optimizer=keras.optimizers.Adam())
history = trainer.fit(images, epochs=3, batch_size=16, shuffle=False)
record(history=history.history, weights=vqvae.get_weights(), codes=quantizer.embeddings.numpy())
