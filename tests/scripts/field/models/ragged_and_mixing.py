# per replica: depends on more than single examples
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class AgainstTheBatch(layers.Layer):
    """The difference to the mean of the batch, of a model that takes texts."""

    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


keras.utils.set_random_seed(0)
words = np.array(["red", "green", "blue", "white"])
texts = np.array([" ".join(np.random.choice(words, 3)) for _ in range(33)])
y = np.random.rand(33, 1).astype("float32")
vectors = layers.TextVectorization(output_mode="multi_hot", vocabulary=list(words))
inputs = keras.Input((), dtype="string")
model = keras.Model(inputs, layers.Dense(1)(AgainstTheBatch()(layers.Dense(4)(vectors(inputs)))))
model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(tf.data.Dataset.from_tensor_slices((texts, y)).batch(8), epochs=2)
record(history=history.history, weights=model.get_weights())
