import keras
import numpy as np
import tensorflow as tf

# refused: make a tf.distribute.MirroredStrategy
strategy = tf.distribute.experimental.CentralStorageStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=1)
