import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class BarlowLoss(keras.losses.Loss):
    def __init__(self, batch_size=None, lambda_amt=5e-3):
        super().__init__()
        self.lambda_amt, self.batch_size = lambda_amt, batch_size

    def normalize(self, x):
        return (x - ops.mean(x, axis=0)) / (ops.std(x, axis=0) + 1e-3)

    def call(self, z_a, z_b):
        n = ops.cast(ops.shape(z_a)[0], "float32")
        c = ops.matmul(ops.transpose(self.normalize(z_a)), self.normalize(z_b)) / n
        on = ops.sum(ops.square(ops.diagonal(c) - 1))
        off = ops.sum(ops.square(c)) - ops.sum(ops.square(ops.diagonal(c)))
        return on + self.lambda_amt * off


class BarlowModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(12, "relu"), layers.Dense(5)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, batch):
        y_a, y_b = batch
        with tf.GradientTape() as tape:
            z_a, z_b = self.encoder(y_a, training=True), self.encoder(y_b, training=True)
            loss = self.loss(z_a, z_b)
        grads = tape.gradient(loss, self.encoder.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.encoder.trainable_variables))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


keras.utils.set_random_seed(0)
x = np.random.rand(40, 6).astype("float32")
ds = tf.data.Dataset.from_tensor_slices((x, x[:, ::-1] * 0.9)).batch(13)
model = BarlowModel()
model.compile(optimizer=keras.optimizers.SGD(0.01), loss=BarlowLoss())
history = model.fit(ds, epochs=3)
record(history=history.history, weights=model.encoder.get_weights())
