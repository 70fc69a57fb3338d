import keras
import numpy as np
from keras import layers, ops
from recording import record


def weighted_bce(pos_weight):
    def loss(y_true, y_pred):
        y_pred = ops.clip(y_pred, 1e-7, 1 - 1e-7)
        return ops.mean(-(pos_weight * y_true * ops.log(y_pred) + (1 - y_true) * ops.log(1 - y_pred)), axis=-1)

    return loss


class FocalLoss(keras.losses.Loss):
    def __init__(self, gamma=2.0, alpha=0.25, name="focal", **kwargs):
        super().__init__(name=name, **kwargs)
        self.gamma, self.alpha = gamma, alpha

    def call(self, y_true, y_pred):
        y_pred = ops.clip(y_pred, 1e-7, 1 - 1e-7)
        p = y_true * y_pred + (1 - y_true) * (1 - y_pred)
        return -self.alpha * ops.power(1 - p, self.gamma) * ops.log(p)


keras.utils.set_random_seed(0)
x = np.random.rand(53, 5).astype("float32")
y = (x.sum(axis=1, keepdims=True) > 3.0).astype("float32")
found = {}
for name, loss in {
    "weighted": weighted_bce(3.0),
    "focal": FocalLoss(),
    "focal_sum": FocalLoss(reduction="sum"),
    "smooth": keras.losses.BinaryCrossentropy(label_smoothing=0.1),
    "hinge": "hinge",
}.items():
    model = keras.Sequential([keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(1, "sigmoid")])
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=[keras.metrics.AUC(), keras.metrics.Precision()])
    history = model.fit(x, y, batch_size=16, epochs=2, class_weight={0: 1.0, 1: 4.0}, shuffle=False)
    found[name] = {"history": history.history, "weights": model.get_weights()}
record(**found)
