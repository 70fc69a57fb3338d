import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(8)
x = np.random.rand(30, 3)
y = x @ np.array([[1.0], [2.0], [-1.0]])


def model():
    keras.utils.set_random_seed(9)
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.01, momentum=0.5), "mse")
    return made


losses = {}
kinds = {
    "tensors": (tf.constant(x, tf.float32), tf.constant(y, tf.float32)),
    "fortran": (np.asfortranarray(x), y[:, 0]),
    "strided": (np.repeat(x, 2, axis=0)[::2], y.astype("float16")),
    "integers": ((2 * x).astype("int64"), (2 * y).astype("int32")),
    "masked": (np.where(x < 0.1, 0.0, x), y),
}
for name, (inputs, targets) in kinds.items():
    one = model()
    history = one.fit(inputs, targets, epochs=2, batch_size=7, shuffle=False, verbose=0, validation_split=0.2)
    losses[name] = [history.history["loss"], history.history["val_loss"], one.get_weights()[0].tolist()]
record(losses=losses)
