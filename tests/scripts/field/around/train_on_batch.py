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
record(losses=losses, weighted=weighted, tested=tested, predicted=predicted, weights=model.get_weights())
