import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def encode(x, degree=3):
    found = [x]
    for i in range(degree):
        found += [tf.sin(2.0**i * x), tf.cos(2.0**i * x)]
    return tf.concat(found, axis=-1)


class NeRF(keras.Model):
    def __init__(self, field):
        super().__init__()
        self.field = field

    def compile(self, optimizer, loss_fn):
        super().compile()
        self.optimizer, self.loss_fn = optimizer, loss_fn
        self.loss_tracker, self.psnr_metric = keras.metrics.Mean(name="loss"), keras.metrics.Mean(name="psnr")

    @property
    def metrics(self):
        return [self.loss_tracker, self.psnr_metric]

    def render(self, rays, training):
        points = rays[:, None, :3] + rays[:, None, 3:] * tf.reshape(tf.linspace(0.1, 1.0, 6), [1, 6, 1])
        out = self.field(encode(points), training=training)
        rgb, sigma = tf.sigmoid(out[..., :3]), tf.nn.relu(out[..., 3])
        alpha = 1.0 - tf.exp(-sigma * 0.15)
        light = tf.math.cumprod(1.0 - alpha + 1e-10, axis=-1, exclusive=True)
        return tf.reduce_sum((alpha * light)[..., None] * rgb, axis=-2)

    def train_step(self, inputs):
        rays, images = inputs
        with tf.GradientTape() as tape:
            rgb = self.render(rays, True)
            loss = self.loss_fn(images, rgb)
        gradients = tape.gradient(loss, self.field.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.field.trainable_variables))
        self.loss_tracker.update_state(loss)
        self.psnr_metric.update_state(tf.image.psnr(images[:, None, None], rgb[:, None, None], max_val=1.0))
        return {"loss": self.loss_tracker.result(), "psnr": self.psnr_metric.result()}

    def test_step(self, inputs):
        rays, images = inputs
        rgb = self.render(rays, False)
        self.loss_tracker.update_state(self.loss_fn(images, rgb))
        self.psnr_metric.update_state(tf.image.psnr(images[:, None, None], rgb[:, None, None], max_val=1.0))
        return {m.name: m.result() for m in self.metrics}


keras.utils.set_random_seed(0)
rays, images = np.random.rand(44, 6).astype("float32"), np.random.rand(44, 3).astype("float32")
train = tf.data.Dataset.from_tensor_slices((rays, images)).batch(16)
model = NeRF(keras.Sequential([keras.Input((6, 21)), layers.Dense(12, "relu"), layers.Dense(4)]))
model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
history = model.fit(train, validation_data=train, epochs=2)
record(history=history.history, weights=model.get_weights())
