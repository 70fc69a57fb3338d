import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(48, 4).astype("float32"), np.random.rand(48, 1).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=["mae"])
losses = []
for epoch in range(2):
    for first in range(0, 48, 16):
        losses.append(model.train_on_batch(x[first : first + 16], y[first : first + 16]))
weighted = model.train_on_batch(x, (y > 0.5).astype("int32"), class_weight={0: 1.0, 1: 3.0}, return_dict=True)
tested = model.test_on_batch(x, y)
predicted = model.predict_on_batch(x[:5])
for size in (16, 7, 16):  # Batches of another size, or with weights, and then again of the first.
    losses.append(model.train_on_batch(x[:size], y[:size]))
    losses.append(model.train_on_batch(x[:size], (y[:size] > 0.5).astype("int32"), class_weight={0: 1.0, 1: 3.0}))
record(losses=losses, weighted=weighted, tested=tested, predicted=predicted, weights=model.get_weights())

inputs = [keras.Input((4,)), keras.Input((4,))]
two = keras.Model(inputs, [keras.layers.Dense(1, name="a")(inputs[0]), keras.layers.Dense(2, name="b")(inputs[1])])
two.compile("sgd", ["mse", "mae"], metrics=[["mae"], []])
found = [two.train_on_batch([x[:7], x[7:14]], [y[:7], x[:7, :2]], return_dict=True) for _ in range(2)]
record(found=found, weights=two.get_weights())
