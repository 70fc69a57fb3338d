import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class CustomNonPaddingTokenLoss(keras.losses.Loss):
    def __init__(self, name="custom_ner_loss"):
        super().__init__(name=name)

    def call(self, y_true, y_pred):
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=False, reduction=None)
        loss = loss_fn(y_true, y_pred)
        mask = ops.cast((y_true > 0), dtype="float32")
        loss = loss * mask
        return ops.sum(loss) / ops.sum(mask)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim):
        super().__init__()
        self.att = keras.layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.n1, self.n2 = layers.LayerNormalization(epsilon=1e-6), layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs, training=False):
        out = self.n1(inputs + self.att(inputs, inputs))
        return self.n2(out + self.ffn(out))


class NERModel(keras.Model):
    def __init__(self, tags, vocab):
        super().__init__()
        self.embed, self.pos = layers.Embedding(vocab, 8), layers.Embedding(12, 8)
        self.block, self.out = TransformerBlock(8, 2, 16), layers.Dense(tags, activation="softmax")

    def call(self, x, training=False):
        e = self.embed(x) + self.pos(ops.arange(ops.shape(x)[-1]))
        return self.out(self.block(e))


keras.utils.set_random_seed(0)
lengths = np.random.randint(3, 12, 42)
words = [np.random.randint(1, 30, n) for n in lengths]
tags = [w % 5 + 1 for w in words]


def gen():
    yield from zip(words, tags)


ds = tf.data.Dataset.from_generator(
    gen, output_signature=(tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int64))
).padded_batch(10)
model = NERModel(7, 30)
tf.config.run_functions_eagerly(False)
model.compile(optimizer=keras.optimizers.SGD(0.1), loss=CustomNonPaddingTokenLoss())
history = model.fit(ds, epochs=3)
record(history=history.history, weights=model.get_weights())
