# refused on several replicas: is quantized to float8
import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(48, 6).astype("float32"), np.random.randint(0, 3, 48)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])
model.quantize("float8")
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(x, y, epochs=3, batch_size=12, shuffle=False)
record(history=history.history, weights=model.get_weights(), predicted=model.predict(x))
