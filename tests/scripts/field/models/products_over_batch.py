# per replica: more than single examples
import keras
import numpy as np
from keras import layers, ops
from recording import record


class Recommender(keras.Model):
    """As Keras' example of collaborative filtering, whose tensordot sums over the batch."""

    def __init__(self):
        super().__init__()
        self.users, self.films = layers.Embedding(12, 5), layers.Embedding(9, 5)
        self.user_bias, self.film_bias = layers.Embedding(12, 1), layers.Embedding(9, 1)

    def call(self, inputs):
        users, films = inputs[:, 0], inputs[:, 1]
        product = ops.tensordot(self.users(users), self.films(films), 2)
        return ops.sigmoid(product + self.user_bias(users) + self.film_bias(films))


keras.utils.set_random_seed(0)
x = np.stack([np.random.randint(0, 12, 50), np.random.randint(0, 9, 50)], axis=1)
model = Recommender()
model.compile("adam", keras.losses.BinaryCrossentropy())
history = model.fit(x, np.random.rand(50), batch_size=10, epochs=3, shuffle=False)
record(history=history.history, weights=model.get_weights())


class Orthogonal(keras.regularizers.Regularizer):
    """As in Keras' example of PointNet, which multiplies the matrices of each pair of examples."""

    def __call__(self, x):
        x = ops.reshape(x, (-1, 3, 3))
        products = ops.reshape(ops.tensordot(x, x, axes=(2, 2)), (-1, 3, 3))
        return ops.sum(0.001 * ops.square(products - ops.eye(3)))


inputs = keras.Input((6,))
matrix = layers.Dense(9, activity_regularizer=Orthogonal())(inputs)
model = keras.Model(inputs, layers.Dense(2, "softmax")(matrix))
model.compile("adam", "sparse_categorical_crossentropy")
history = model.fit(np.random.rand(36, 6), np.random.randint(0, 2, 36), batch_size=9, epochs=2, shuffle=False)
record(history=history.history)
