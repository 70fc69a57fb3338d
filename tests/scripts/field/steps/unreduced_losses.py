import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class Focal(keras.losses.Loss):
    def call(self, y_true, y_pred):
        p = ops.sum(y_true * y_pred, axis=-1)
        return -ops.square(1 - p) * ops.log(p + 1e-7)


class Weighted(keras.Model):
    """Losses without reduction, weighted by the step."""

    def compile(self, optimizer, metrics):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.focal = Focal(reduction="none", name="focal")
        self.crossentropy = keras.losses.CategoricalCrossentropy(reduction="none")

    def train_step(self, data):
        x, y, weights = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(self.focal(y, y_pred) * weights)
            loss += tf.reduce_mean(self.crossentropy(y, y_pred, sample_weight=weights))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
x, y = np.random.rand(32, 5).astype("float32"), np.eye(3)[np.random.randint(0, 3, 32)].astype("float32")
inputs = keras.Input((5,))
model = Weighted(inputs, layers.Dense(3, "softmax")(layers.Dense(8, "relu")(inputs)))
model.compile("adam", metrics=["accuracy", keras.metrics.F1Score(average=None, name="f1")])
weights = np.linspace(0.2, 2.0, 32).astype("float32")
history = model.fit(x, y, sample_weight=weights, epochs=2, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights())
