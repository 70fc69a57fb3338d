import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
inputs = keras.Input((6,))
body = keras.layers.Dense(8, "relu")(inputs)
model = keras.Model(inputs, [keras.layers.Dense(1, name="a")(body), keras.layers.Dense(3, "softmax", name="b")(body)])
model.compile(
    "adam", ["mse", "sparse_categorical_crossentropy"], loss_weights=[1.0, 0.3], metrics=[["mae"], ["accuracy"]]
)
targets = [x.sum(1), np.random.randint(0, 3, 33)]
history = model.fit(
    x, targets, sample_weight=[np.ones(33), np.linspace(0, 1, 33)], epochs=2, batch_size=11, shuffle=False
)
record(loss=history.history["loss"], weights=model.get_weights(), scores=len(model.evaluate(x, targets)))
