import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


def giou(b1, b2):
    b1, b2 = tf.unstack(b1, axis=-1), tf.unstack(b2, axis=-1)
    w = tf.maximum(0.0, tf.minimum(b1[2], b2[2]) - tf.maximum(b1[0], b2[0]))
    h = tf.maximum(0.0, tf.minimum(b1[3], b2[3]) - tf.maximum(b1[1], b2[1]))
    inter = w * h
    area = lambda b: tf.maximum(b[2] - b[0], 0.0) * tf.maximum(b[3] - b[1], 0.0)  # noqa: E731
    union = area(b1) + area(b2) - inter
    hull = (tf.maximum(b1[2], b2[2]) - tf.minimum(b1[0], b2[0])) * (tf.maximum(b1[3], b2[3]) - tf.minimum(b1[1], b2[1]))
    return inter / (union + 1e-6) - (hull - union) / (hull + 1e-6)


class BoxLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return 1.0 - giou(y_true, y_pred)


class RetinaLoss(keras.losses.Loss):
    """As in keras.io's RetinaNet: normalised by the number of positive anchors of the image."""

    def __init__(self):
        super().__init__(reduction="sum_over_batch_size", name="RetinaNetLoss")

    def call(self, y_true, y_pred):
        positive = ops.cast(ops.greater(y_true[..., 0], 0.5), "float32")
        ce = ops.binary_crossentropy(y_true, y_pred)
        ce = ops.sum(ops.sum(ce, axis=-1), axis=-1)
        return tf.math.divide_no_nan(ce, ops.sum(positive, axis=-1))


class MeanIoUOfBoxes(keras.metrics.Metric):
    def __init__(self, name="box_iou"):
        super().__init__(name=name)
        self.total, self.count = (
            self.add_weight(name="t", initializer="zeros"),
            self.add_weight(name="c", initializer="zeros"),
        )

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(giou(y_true, y_pred)))
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self):
        return tf.math.divide_no_nan(self.total, self.count)


keras.utils.set_random_seed(0)
x = np.random.rand(30, 8, 8, 3).astype("float32")
corner = np.random.rand(30, 2).astype("float32") * 0.5
boxes = np.concatenate([corner, corner + 0.2 + 0.3 * np.random.rand(30, 2)], axis=1).astype("float32")
anchors = (np.random.rand(30, 5, 2) > 0.6).astype("float32")
inputs = keras.Input((8, 8, 3))
h = layers.Flatten()(layers.Conv2D(4, 3, strides=2, activation="relu")(inputs))
box = layers.Dense(4, name="box")(h)
cls = layers.Reshape((5, 2), name="cls")(layers.Dense(10, "sigmoid")(h))
model = keras.Model(inputs, {"box": box, "cls": cls})
model.compile(
    keras.optimizers.Adam(1e-3, clipnorm=5.0),
    loss={"box": BoxLoss(), "cls": RetinaLoss()},
    loss_weights={"box": 2.0, "cls": 0.1},
    metrics={"box": MeanIoUOfBoxes()},
)
history = model.fit(x, {"box": boxes, "cls": anchors}, batch_size=8, epochs=3, shuffle=False)
record(loss=history.history["loss"], iou=history.history["box_box_iou"], weights=model.get_weights())
