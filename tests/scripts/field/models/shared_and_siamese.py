import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
a, b = np.random.rand(30, 4).astype("float32"), np.random.rand(30, 4).astype("float32")
same = np.random.randint(0, 2, 30).astype("float32")
tower = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(3)])
left, right = keras.Input((4,)), keras.Input((4,))
distance = keras.ops.norm(tower(left) - tower(right) + 1e-6, axis=1, keepdims=True)


def contrastive(y, d):
    y = keras.ops.cast(keras.ops.reshape(y, (-1, 1)), d.dtype)
    return keras.ops.mean(y * d**2 + (1 - y) * keras.ops.maximum(1.0 - d, 0.0) ** 2)


model = keras.Model([left, right], distance)
model.compile("rmsprop", contrastive)
history = model.fit([a, b], same, epochs=3, batch_size=7, shuffle=False)
record(history=history.history, weights=model.get_weights(), embedded=tower.predict(a))
