import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
writer = tf.summary.create_file_writer("logs/extra")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")


class Log(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with writer.as_default():
            tf.summary.scalar("norm", keras.ops.norm(self.model.layers[0].kernel), step=epoch)
            tf.summary.image("kernel", keras.ops.reshape(self.model.layers[0].kernel, (1, 2, 2, 1)), step=epoch)


model.fit(x, x[:, 0], epochs=2, batch_size=8, shuffle=False, callbacks=[Log()])
writer.close()
files = tf.io.gfile.glob("logs/extra/*")
events = sum(1 for _ in tf.data.TFRecordDataset(files))
record(files=len(files), events=events)
