# After TensorFlow's tutorial "Neural machine translation with attention": cells in a loop, masked by padding.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Translator(keras.Model):
    def __init__(self):
        super().__init__()
        self.embed, self.encoder = (
            layers.Embedding(10, 6, mask_zero=True),
            layers.GRU(6, return_sequences=True, return_state=True),
        )
        self.cell, self.head = layers.GRUCell(6), layers.Dense(10)
        self.query = layers.Dense(6)

    def train_step(self, data):
        source, target = data
        with tf.GradientTape() as tape:
            states, state = self.encoder(self.embed(source), training=True)
            total, words = 0.0, 0.0
            for place in range(target.shape[1] - 1):
                scores = tf.einsum("bte,be->bt", states, self.query(state))
                scores += -1e9 * tf.cast(source == 0, tf.float32)
                context = tf.einsum("bt,bte->be", tf.nn.softmax(scores), states)
                fed = tf.concat([self.embed(target[:, place]), context], axis=1)
                output, (state,) = self.cell(fed, [state])
                mask = tf.cast(target[:, place + 1] > 0, tf.float32)
                errors = tf.nn.sparse_softmax_cross_entropy_with_logits(target[:, place + 1], self.head(output))
                total, words = total + tf.reduce_sum(errors * mask), words + tf.reduce_sum(mask)
            loss = total / tf.maximum(words, 1.0)
        gradients = [tf.clip_by_norm(g, 0.3) for g in tape.gradient(loss, self.trainable_variables)]
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "words": words}


keras.utils.set_random_seed(0)
source, target = np.random.randint(1, 10, (17, 5)), np.random.randint(1, 10, (17, 4))
source[np.arange(5)[None] >= np.random.randint(2, 6, (17, 1))] = 0
target[np.arange(4)[None] >= np.random.randint(2, 5, (17, 1))] = 0
model = Translator()
model.compile(keras.optimizers.Adam(0.02))
history = model.fit(source, target, batch_size=4, epochs=2, shuffle=False)
record(history=history.history, weights=[w.numpy() for w in model.weights])
