import keras
import numpy as np
from keras import ops
from recording import record

x = np.random.RandomState(0).rand(36, 4).astype("float32")
keras.utils.set_random_seed(1)
inputs = keras.Input((4,))
hidden = keras.layers.Dense(3)(inputs)
outputs = {
    "softmax": ops.softmax(hidden, axis=0),
    "centred": hidden - ops.mean(hidden, axis=0, keepdims=True),
    "rank": ops.argsort(ops.argsort(hidden[:, 0])),
}
found = {name: keras.Model(inputs, output).predict(x, batch_size=8, verbose=0) for name, output in outputs.items()}
pairs = keras.Model(inputs, ops.matmul(hidden, ops.transpose(hidden)))
record(**found, pairs=pairs.predict(x[:32], batch_size=8, verbose=0), on_batch=pairs.predict_on_batch(x[:8]))
