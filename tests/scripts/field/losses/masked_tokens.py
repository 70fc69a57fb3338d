import keras
import numpy as np
from keras import ops
from recording import record


class NonPaddingLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=False, reduction=None)
        loss = loss_fn(y_true, y_pred)
        mask = ops.cast(y_true > 0, "float32")
        return ops.sum(loss * mask) / ops.sum(mask)


def masked_accuracy(y_true, y_pred):
    match = ops.cast(ops.equal(ops.cast(y_true, "int64"), ops.argmax(y_pred, axis=-1)), "float32")
    mask = ops.cast(y_true > 0, "float32")
    return ops.sum(match * mask) / ops.sum(mask)


keras.utils.set_random_seed(0)
x = np.random.randint(0, 9, (26, 7))
y = np.where(x > 3, x % 4, 0)
model = keras.Sequential([keras.Input((7,)), keras.layers.Embedding(9, 6), keras.layers.Dense(4, "softmax")])
model.compile("adam", NonPaddingLoss(), metrics=[masked_accuracy])
history = model.fit(x, y, epochs=3, batch_size=8, shuffle=False)
record(history=history.history, weights=model.get_weights())
