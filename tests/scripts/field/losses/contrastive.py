import keras
import numpy as np
from keras import ops
from recording import record


class SupervisedContrastive(keras.losses.Loss):
    def __init__(self, temperature=0.5, name=None):
        super().__init__(name=name)
        self.temperature = temperature

    def __call__(self, labels, features, sample_weight=None):
        features = features / ops.norm(features, axis=1, keepdims=True)
        logits = ops.matmul(features, ops.transpose(features)) / self.temperature
        same = ops.cast(ops.equal(ops.reshape(labels, (-1, 1)), ops.reshape(labels, (1, -1))), "float32")
        same = same / ops.sum(same, axis=1, keepdims=True)
        return ops.mean(-ops.sum(same * ops.log_softmax(logits, axis=1), axis=1))


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 5).astype("float32"), np.random.randint(0, 4, 40)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
model.compile("adam", SupervisedContrastive())
history = model.fit(x, y, epochs=2, batch_size=16, shuffle=False)
record(history=history.history, weights=model.get_weights())
