import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = tf.data.Dataset.from_tensor_slices(np.random.rand(30, 6, 6, 1).astype("float32"))
y = tf.data.Dataset.from_tensor_slices(np.random.randint(0, 2, 30))
data = tf.data.Dataset.zip((x, y)).map(lambda image, label: (image * 2 - 1, tf.one_hot(label, 2)), tf.data.AUTOTUNE)
train, test = data.skip(8).cache().batch(5).prefetch(tf.data.AUTOTUNE), data.take(8).batch(5)
model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(2, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
history = model.fit(train, validation_data=test, epochs=2)
record(history=history.history, predicted=model.predict(test))
