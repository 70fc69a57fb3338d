import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
writer = tf.summary.create_file_writer("logs/steps")


class Logs(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        with writer.as_default(step=self.optimizer.iterations):
            tf.summary.scalar("loss", loss)
        return {"error": loss}


model = Logs([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], epochs=2, batch_size=12, shuffle=False, verbose=0)
writer.close()
records = [one.numpy() for one in tf.data.TFRecordDataset(tf.io.gfile.glob("logs/steps/*"))]
values = [one for text in records for one in tf.compat.v1.Event.FromString(text).summary.value]
written = [float(tf.make_ndarray(one.tensor)) for one in values]
record(tags=sorted({one.tag for one in values}), written=written, errors=history.history["error"])
