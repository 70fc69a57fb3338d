import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(24, 3).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(data, steps_per_epoch=10, epochs=2, validation_data=data, validation_steps=8)
record(history=history.history, steps=int(model.optimizer.iterations))
