import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(33, 8, 8, 1).astype("float32")
data = tf.data.Dataset.from_tensor_slices(x).batch(8).map(lambda image: (image, image))
layers = [
    keras.layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
    keras.layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid"),
]
model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
model.compile("adam", "binary_crossentropy")
history = model.fit(data, epochs=2, validation_data=data.take(2))
record(history=history.history, weights=model.get_weights())
