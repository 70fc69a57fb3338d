import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
checkpoint = tf.train.Checkpoint(model=model)
manager = tf.train.CheckpointManager(checkpoint, "ckpt", max_to_keep=2)
manager.save()
model.fit(x, x[:, 0], epochs=1, batch_size=8, shuffle=False)
checkpoint.restore(manager.latest_checkpoint)
record(weights=model.get_weights())
