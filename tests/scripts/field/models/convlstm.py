import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(10, 4, 6, 6, 1).astype("float32")
layers = [keras.layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)]
layers += [keras.layers.Conv3D(1, 3, padding="same", activation="sigmoid")]
model = keras.Sequential([keras.Input((4, 6, 6, 1)), *layers])
model.compile("adam", "binary_crossentropy")
history = model.fit(x, x, epochs=2, batch_size=4, shuffle=False)
record(history=history.history, weights=model.get_weights())
