import keras
import numpy as np
import tensorflow as tf
from recording import record

tf.config.run_functions_eagerly(True)
keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x.sum(1), epochs=2, batch_size=10, shuffle=False)
record(loss=history.history["loss"], predicted=model.predict(x[:3]))
