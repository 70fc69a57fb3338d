import keras
import numpy as np
from recording import record

# draws: the order of a set of strings differs between starts of Python
# own process
labels = ["cat", "dog", "bird", "fish", "horse"] * 12
names = list(set(labels))
y = np.array([names.index(label) for label in labels])
keras.utils.set_random_seed(0)
x = np.random.rand(60, 5).astype("float32")
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5, "softmax")])
model.compile("sgd", "sparse_categorical_crossentropy")
history = model.fit(x, y, epochs=2, batch_size=20, shuffle=False)
record(loss=history.history["loss"])
