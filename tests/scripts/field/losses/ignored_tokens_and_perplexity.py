import keras
import numpy as np
from keras import layers, ops
from recording import record


class Perplexity(keras.metrics.Metric):
    def __init__(self, ignore=0, name="perplexity"):
        super().__init__(name=name)
        self.ignore = ignore
        self.nats = self.add_weight(name="nats", initializer="zeros")
        self.tokens = self.add_weight(name="tokens", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        mask = ops.cast(ops.not_equal(y_true, self.ignore), "float32")
        values = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        self.nats.assign_add(ops.sum(values * mask))
        self.tokens.assign_add(ops.sum(mask))

    def result(self):
        return ops.exp(ops.divide_no_nan(self.nats, self.tokens))


class TiedEmbedding(layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(12, 8), initializer="uniform")

    def call(self, x, reverse=False):
        return ops.matmul(x, ops.transpose(self.table)) if reverse else ops.take(self.table, x, axis=0)


class LM(keras.Model):
    def __init__(self):
        super().__init__()
        self.tied, self.norm = TiedEmbedding(), layers.LayerNormalization()
        self.attention = layers.MultiHeadAttention(2, 4)

    def call(self, x):
        h = self.tied(x)
        h = self.norm(h + self.attention(h, h, use_causal_mask=True))
        return self.tied(h, reverse=True)


keras.utils.set_random_seed(0)
lengths = np.random.randint(2, 8, (35, 1))
tokens = np.random.randint(1, 12, (35, 8)) * (np.arange(8) < lengths)
x, y = tokens[:, :-1], tokens[:, 1:]
found = {}
for name, loss in {
    "ignored": keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
    "weighted": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "by_weight": keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
}.items():
    model = LM()
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[Perplexity()], weighted_metrics=["accuracy"])
    weights = None if name == "ignored" else (y > 0).astype("float32")
    history = model.fit(x, y, sample_weight=weights, batch_size=12, epochs=2, shuffle=False)
    found[name] = {"history": history.history, "weights": model.get_weights()}
record(**found)
