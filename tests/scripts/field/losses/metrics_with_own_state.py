import keras
import numpy as np
from keras import layers, ops
from recording import record


class ConfusionMatrix(keras.metrics.Metric):
    def __init__(self, classes, name="cm", **kwargs):
        super().__init__(name=name, **kwargs)
        self.classes = classes
        self.matrix = self.add_weight(shape=(classes, classes), initializer="zeros", name="matrix")

    def update_state(self, y_true, y_pred, sample_weight=None):
        t = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), self.classes)
        p = ops.one_hot(ops.argmax(y_pred, axis=-1), self.classes)
        self.matrix.assign(self.matrix + ops.matmul(ops.transpose(t), p))

    def result(self):
        return self.matrix

    def reset_state(self):
        self.matrix.assign(ops.zeros((self.classes, self.classes)))


class RunningMedian(keras.metrics.Metric):
    """Median of the last batch, and a moving average of it."""

    def __init__(self, name="median"):
        super().__init__(name=name)
        self.average = self.add_weight(name="average", initializer="zeros")
        self.steps = self.add_weight(name="steps", initializer="zeros", dtype="int32")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.steps.assign_add(1)
        rate = 1.0 / ops.cast(self.steps, "float32")
        self.average.assign(self.average + rate * (ops.median(ops.max(y_pred, axis=-1)) - self.average))

    def result(self):
        return {"median": self.average + 0.0, "updates": ops.cast(self.steps, "float32")}


class Agreement(keras.metrics.MeanMetricWrapper):
    def __init__(self, name="agree", dtype=None):
        super().__init__(lambda t, p: ops.cast(ops.equal(ops.reshape(t, (-1,)), ops.argmax(p, -1)), "float32"), name)


class WeightedError(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        top = ops.max(y_pred, axis=-1)
        return super().update_state(ops.square(1.0 - top), sample_weight=ops.sqrt(top))


keras.utils.set_random_seed(0)
x, y = np.random.rand(50, 6).astype("float32"), np.random.randint(0, 3, 50)
model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")])
metrics = [ConfusionMatrix(3), RunningMedian(), Agreement(), WeightedError(name="we")]
model.compile("adam", "sparse_categorical_crossentropy", metrics=metrics, weighted_metrics=["accuracy"])
history = model.fit(
    x, y, sample_weight=np.linspace(0.1, 2.0, 50), batch_size=14, epochs=3, validation_data=(x, y), shuffle=False
)
scores = model.evaluate(x, y, batch_size=9, return_dict=True)
record(history=history.history, scores=scores)
