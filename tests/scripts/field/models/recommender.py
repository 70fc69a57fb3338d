import keras
import numpy as np
from keras import ops
from recording import record


class Recommender(keras.Model):
    def __init__(self, users, items, size):
        super().__init__()
        self.user, self.item = keras.layers.Embedding(users, size), keras.layers.Embedding(items, size)
        self.user_bias, self.item_bias = keras.layers.Embedding(users, 1), keras.layers.Embedding(items, 1)

    def call(self, pairs):
        u, i = pairs[:, 0], pairs[:, 1]
        dot = ops.sum(self.user(u) * self.item(i), axis=1, keepdims=True)
        return ops.sigmoid(dot + self.user_bias(u) + self.item_bias(i))


keras.utils.set_random_seed(0)
pairs = np.stack([np.random.randint(0, 9, 60), np.random.randint(0, 7, 60)], axis=1)
ratings = np.random.rand(60, 1).astype("float32")
model = Recommender(9, 7, 4)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
history = model.fit(pairs, ratings, validation_split=0.2, epochs=3, batch_size=16, shuffle=False)
record(history=history.history, weights=model.get_weights())
