import keras
import numpy as np
from recording import record

# draws: augmentation and dropout in the model
keras.utils.set_random_seed(0)
x, y = np.random.rand(96, 8, 8, 3).astype("float32"), np.random.randint(0, 2, 96)
layers = [keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), keras.layers.RandomContrast(0.1)]
layers += [keras.layers.GaussianNoise(0.05), keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.MaxPooling2D()]
layers += [keras.layers.Flatten(), keras.layers.Dropout(0.2), keras.layers.Dense(2, "softmax")]
model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
model.compile("sgd", "sparse_categorical_crossentropy")
history = model.fit(x, y, epochs=2, batch_size=32)
record(loss=history.history["loss"])
