import keras
import numpy as np
from keras import backend as K  # noqa: F401
from keras import layers, ops
from recording import record

smooth = 1e-3


def tversky(y_true, y_pred):
    t, p = ops.reshape(y_true, (-1,)), ops.reshape(y_pred, (-1,))
    tp, fn, fp = ops.sum(t * p), ops.sum(t * (1 - p)), ops.sum((1 - t) * p)
    return (tp + smooth) / (tp + 0.7 * fn + 0.3 * fp + smooth)


def focal_tversky_loss(y_true, y_pred):
    return ops.power(1 - tversky(y_true, y_pred), 0.75)


def iou_coef(y_true, y_pred):
    y_pred = ops.cast(y_pred > 0.5, "float32")
    inter = ops.sum(y_true * y_pred, axis=[1, 2, 3])
    union = ops.sum(y_true, [1, 2, 3]) + ops.sum(y_pred, [1, 2, 3]) - inter
    return ops.mean((inter + smooth) / (union + smooth), axis=0)


def dice_coef(y_true, y_pred):
    inter = ops.sum(y_true * y_pred)
    return (2 * inter + smooth) / (ops.sum(y_true) + ops.sum(y_pred) + smooth)


keras.utils.set_random_seed(1)
x = np.random.rand(21, 8, 8, 1).astype("float32")
y = (x > 0.6).astype("float32")
inputs = keras.Input((8, 8, 1))
c1 = layers.Conv2D(4, 3, activation="relu", padding="same")(inputs)
c2 = layers.Conv2D(8, 3, activation="relu", padding="same")(layers.MaxPooling2D()(c1))
u = layers.concatenate([layers.UpSampling2D()(c2), c1])
model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(u))
model.compile(keras.optimizers.Adam(1e-2), loss=focal_tversky_loss, metrics=[iou_coef, dice_coef, tversky, "accuracy"])
history = model.fit(x, y, validation_data=(x[:5], y[:5]), batch_size=8, epochs=3, shuffle=False)
record(history=history.history, weights=model.get_weights(), score=model.evaluate(x, y, batch_size=6))
