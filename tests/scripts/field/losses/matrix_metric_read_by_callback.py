import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class Kappa(keras.metrics.Metric):
    """Quadratic weighted kappa, as in competitions: a confusion matrix that is divided by its sum at the end."""

    def __init__(self, classes=3, name="kappa", **options):
        super().__init__(name=name, **options)
        self.matrix = self.add_weight(shape=(classes, classes), initializer="zeros", name="matrix")
        self.worst = self.add_weight(shape=(), initializer="zeros", name="worst")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        found = tf.math.confusion_matrix(y, ops.argmax(y_pred, axis=-1), 3, weights=sample_weight, dtype=tf.float32)
        self.matrix.assign_add(found)
        self.worst.assign(ops.maximum(self.worst, 1 - ops.min(ops.max(y_pred, axis=1))))

    def result(self):
        m = self.matrix / ops.maximum(ops.sum(self.matrix), 1.0)
        cost = ops.cast(ops.square(ops.arange(3)[:, None] - ops.arange(3)[None]), "float32")
        chance = ops.sum(m, axis=1)[:, None] * ops.sum(m, axis=0)[None]
        return 1 - ops.divide_no_nan(ops.sum(cost * m), ops.sum(cost * chance))


class Reads(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append([float(m.result()) for m in self.model.metrics if m.name == "loss"] + [float(logs["kappa"])])


keras.utils.set_random_seed(0)
x, y, weight = (
    np.random.rand(33, 5).astype("float32"),
    np.random.randint(0, 3, 33),
    np.random.rand(33).astype("float32"),
)
model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")])
model.compile(
    keras.optimizers.Adam(0.02),
    "sparse_categorical_crossentropy",
    metrics=[Kappa(), "accuracy"],
    weighted_metrics=[Kappa(name="weighted")],
)
reads = Reads()
history = model.fit(
    x,
    y,
    sample_weight=weight,
    batch_size=8,
    epochs=2,
    shuffle=False,
    callbacks=[reads],
)
matrix = next(m for m in model.metrics if m.name != "loss").metrics[0].matrix.numpy()
record(
    history=history.history,
    seen=reads.seen,
    matrix=matrix,
    weights=model.get_weights(),
    tested=model.evaluate(x, y, batch_size=16),
)
