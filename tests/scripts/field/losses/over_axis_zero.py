import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Symmetric(keras.Model):
    """Keras' own losses and metrics over the examples: a softmax over the batch, a cosine over the batch."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = keras.losses.CategoricalCrossentropy(from_logits=True, axis=0)(y, y_pred)
            loss += keras.losses.CosineSimilarity(axis=0)(y, y_pred)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        metrics = self.compute_metrics(x, y, y_pred)
        return {**metrics, "objective": loss}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 5).astype("float32"), np.eye(3, dtype="float32")[np.random.randint(0, 3, 34)]
inputs = keras.Input((5,))
model = Symmetric(inputs, layers.Dense(3)(layers.Dense(8, "relu")(inputs)))
model.compile(
    keras.optimizers.SGD(0.1), keras.losses.CosineSimilarity(axis=0), metrics=[keras.metrics.CosineSimilarity(axis=0)]
)
history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False)
plain = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
plain.compile(
    keras.optimizers.SGD(0.1),
    keras.losses.CategoricalCrossentropy(from_logits=True, axis=0),
    metrics=[keras.metrics.CosineSimilarity(axis=0)],
)
again = plain.fit(x, y, batch_size=8, epochs=2, shuffle=False)
record(history=history.history, again=again.history, weights=model.get_weights(), plain=plain.get_weights())
