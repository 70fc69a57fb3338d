import keras
import numpy as np
from keras import ops
from recording import record

bce = keras.losses.BinaryCrossentropy()


def dice_coef(y_true, y_pred, smooth=1.0):
    y_true, y_pred = ops.reshape(y_true, (-1,)), ops.reshape(y_pred, (-1,))
    overlap = ops.sum(y_true * y_pred)
    return (2.0 * overlap + smooth) / (ops.sum(y_true) + ops.sum(y_pred) + smooth)


def bce_dice(y_true, y_pred):
    return bce(y_true, y_pred) + 1 - dice_coef(y_true, y_pred)


rng = np.random.default_rng(0)
x = rng.random((19, 6, 6, 1)).astype("float32")
y = (x > 0.4).astype("float32")
keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(3, 3, padding="same", activation="relu"), keras.layers.Conv2D(1, 1, activation="sigmoid")]
model = keras.Sequential([keras.Input((6, 6, 1)), *layers])
model.compile("adam", bce_dice, metrics=[dice_coef, "accuracy"])
history = model.fit(x, y, validation_data=(x[:7], y[:7]), epochs=3, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights())
