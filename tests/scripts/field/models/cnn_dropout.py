import keras
import numpy as np
from recording import record

# draws: dropout
keras.utils.set_random_seed(0)
x, y = np.random.rand(96, 8, 8, 1).astype("float32"), np.random.randint(0, 3, 96)
layers = [keras.layers.Conv2D(6, 3, activation="relu"), keras.layers.MaxPooling2D(), keras.layers.Flatten()]
layers += [keras.layers.Dropout(0.2), keras.layers.Dense(3, "softmax")]
model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
model.compile("adam", "sparse_categorical_crossentropy")
history = model.fit(x, y, epochs=2, batch_size=32)
record(loss=history.history["loss"])
