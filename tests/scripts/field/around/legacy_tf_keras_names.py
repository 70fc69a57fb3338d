import numpy as np
import tensorflow as tf
from recording import record
from tensorflow.keras import layers, models

tf.keras.utils.set_random_seed(6)
x = np.random.rand(36, 5).astype("float32")
y = tf.keras.utils.to_categorical(np.arange(36) % 3, 3)
model = models.Sequential()
model.add(layers.Dense(8, activation="relu", input_shape=(5,)))
model.add(layers.Dense(3, activation="softmax"))
model.compile(optimizer=tf.keras.optimizers.RMSprop(1e-2), loss="categorical_crossentropy", metrics=["acc"])
stop = tf.keras.callbacks.EarlyStopping(monitor="loss", patience=1)
history = model.fit(x, y, batch_size=6, epochs=3, shuffle=False, verbose=0, callbacks=[stop])
record(history=history.history, score=model.evaluate(x, y, verbose=0), weights=model.get_weights())
