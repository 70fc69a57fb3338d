import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class DualEncoder(keras.Model):
    def __init__(self, text_encoder, image_encoder, temperature=1.0, **kwargs):
        super().__init__(**kwargs)
        self.text_encoder, self.image_encoder, self.temperature = text_encoder, image_encoder, temperature
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, features, training=False):
        return self.text_encoder(features["caption"]), self.image_encoder(features["image"])

    def compute_loss(self, caption_embeddings, image_embeddings):
        logits = tf.matmul(caption_embeddings, image_embeddings, transpose_b=True) / self.temperature
        images_similarity = tf.matmul(image_embeddings, image_embeddings, transpose_b=True)
        captions_similarity = tf.matmul(caption_embeddings, caption_embeddings, transpose_b=True)
        targets = keras.activations.softmax((captions_similarity + images_similarity) / (2 * self.temperature))
        captions_loss = keras.losses.categorical_crossentropy(y_true=targets, y_pred=logits, from_logits=True)
        images_loss = keras.losses.categorical_crossentropy(
            y_true=tf.transpose(targets), y_pred=tf.transpose(logits), from_logits=True
        )
        return (captions_loss + images_loss) / 2

    def train_step(self, features):
        with tf.GradientTape() as tape:
            caption_embeddings, image_embeddings = self(features, training=True)
            loss = self.compute_loss(caption_embeddings, image_embeddings)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, features):
        caption_embeddings, image_embeddings = self(features, training=False)
        loss = self.compute_loss(caption_embeddings, image_embeddings)
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


keras.utils.set_random_seed(0)
data = {"caption": np.random.randint(0, 20, (36, 5)), "image": np.random.rand(36, 7).astype("float32")}
ds = tf.data.Dataset.from_tensor_slices(data).batch(12)
text = keras.Sequential([keras.Input((5,)), layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(4)])
image = keras.Sequential([keras.Input((7,)), layers.Dense(8, "gelu"), layers.Dense(4)])
model = DualEncoder(text, image, temperature=0.5)
model.compile(optimizer=keras.optimizers.AdamW(learning_rate=0.01, weight_decay=0.001))
history = model.fit(ds, epochs=3, validation_data=ds)
record(history=history.history, weights=model.get_weights())
