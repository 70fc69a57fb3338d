# Keras computes losses of a softmax from its logits: probabilities below 1e-7 would have no gradient.
import keras
import numpy as np
import tensorflow as tf
from recording import record

LOSSES = {
    "sparse": keras.losses.sparse_categorical_crossentropy,
    "dense": lambda y, p: keras.losses.categorical_crossentropy(tf.one_hot(y, 4), p),
    "binary": lambda y, p: keras.losses.binary_crossentropy(tf.one_hot(y, 4), p),
    "axis": lambda y, p: keras.losses.categorical_crossentropy(tf.one_hot(y, 4), p, axis=0),
    "both": lambda y, p: (
        keras.losses.sparse_categorical_crossentropy(y, p) + tf.reduce_sum(p * tf.reduce_mean(p, 0), 1)
    ),
}


class Classifier(keras.Model):
    def __init__(self, loss, activation):
        super().__init__()
        large = keras.initializers.RandomNormal(stddev=9.0, seed=1)
        self.classes, self.of_step = keras.layers.Dense(4, activation, kernel_initializer=large), LOSSES[loss]

    def call(self, x):
        return self.classes(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.of_step(y, self(x)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
x, y = 4 * np.random.rand(67, 6).astype("float32") - 2, np.random.randint(0, 4, 67)
compiled = [(loss, activation, False) for activation in ("softmax", "sigmoid") for loss in LOSSES]
for loss, activation, by_xla in [*compiled, ("sparse", "softmax", True)]:
    model = Classifier(loss, activation)
    model.compile(keras.optimizers.SGD(0.5), jit_compile=by_xla)
    history = model.fit(x, y, batch_size=9, epochs=2, shuffle=False)
    record(**{f"{loss} of {activation}, {by_xla}": [history.history, [w.numpy() for w in model.weights]]})
