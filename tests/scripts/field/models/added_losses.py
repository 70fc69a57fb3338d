# per replica: adds as a loss
import keras
import numpy as np
from keras import layers, ops
from recording import record


class ActivityRegularization(layers.Layer):
    """As in the guide on subclassing: losses that depend on the inputs."""

    def call(self, inputs):
        self.add_loss(0.01 * ops.sum(inputs))
        self.add_loss(0.01 * ops.mean(ops.square(inputs)))
        return inputs


class Endpoint(layers.Layer):
    """As in Keras' example: a layer that computes the loss, by loss objects, and a metric."""

    def __init__(self):
        super().__init__()
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.error = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, logits, targets=None, weights=None):
        if targets is not None:
            self.add_loss(self.loss(targets, logits, weights))
            self.add_loss(0.1 * self.error(targets, logits, weights))
            self.accuracy.update_state(targets, logits, weights)
        return ops.sigmoid(logits)


keras.utils.set_random_seed(0)
inputs, targets, weights = (keras.Input((size,), name=name) for size, name in ((6, "x"), (1, "y"), (1, "weights")))
hidden = ActivityRegularization()(layers.Dense(8, "relu", activity_regularizer="l1")(inputs))
model = keras.Model([inputs, targets, weights], Endpoint()(layers.Dense(1)(hidden), targets, weights))
model.compile("adam")
data = {"x": np.random.rand(50, 6), "y": np.random.randint(0, 2, (50, 1)), "weights": np.random.rand(50, 1)}
history = model.fit(data, epochs=3, batch_size=12, shuffle=False, validation_split=0.2)
record(history=history.history, weights=model.get_weights(), evaluated=model.evaluate(data))
