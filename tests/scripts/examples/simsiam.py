"""Self-supervised learning from two views of an image, after https://keras.io/examples/vision/simsiam."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
DIMENSION, SIZE = 16, 12


def augment(image, seed):
    image = tf.image.stateless_random_flip_left_right(image, seed)
    crop = tf.image.stateless_random_crop(image, (SIZE - 3, SIZE - 3, 3), seed + 1)
    image = tf.image.resize(crop, (SIZE, SIZE))
    return tf.image.stateless_random_brightness(image, 0.3, seed + 2)


def view(images, offset):
    dataset = tf.data.Dataset.from_tensor_slices(images)
    seeds = tf.data.Dataset.range(offset, offset + 3 * len(images), 3).map(lambda n: tf.stack([n, n]))
    return tf.data.Dataset.zip((dataset, seeds)).map(augment, num_parallel_calls=tf.data.AUTOTUNE)


def make_encoder():
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(x))
    # Statistics of all replicas: the training is then that of one device.
    x = layers.Dense(DIMENSION, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.0005))(x)
    x = layers.ReLU()(layers.BatchNormalization(synchronized=True)(x))
    x = layers.Dense(DIMENSION, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.0005))(x)
    return keras.Model(inputs, layers.BatchNormalization(synchronized=True)(x), name="encoder")


def make_predictor():
    inputs = keras.Input((DIMENSION,))
    x = layers.Dense(8, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.0005))(inputs)
    x = layers.BatchNormalization(synchronized=True)(layers.ReLU()(x))
    return keras.Model(inputs, layers.Dense(DIMENSION)(x), name="predictor")


def compute_loss(p, z):
    # No gradient flows through the other view.
    z = ops.normalize(ops.stop_gradient(z), axis=1, order=2)
    p = ops.normalize(p, axis=1, order=2)
    return -ops.mean(ops.sum(p * z, axis=1))


class SimSiam(keras.Model):
    def __init__(self, encoder, predictor):
        super().__init__()
        self.encoder = encoder
        self.predictor = predictor
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def train_step(self, data):
        ds_one, ds_two = data
        with tf.GradientTape() as tape:
            z1, z2 = self.encoder(ds_one, training=True), self.encoder(ds_two, training=True)
            p1, p2 = self.predictor(z1, training=True), self.predictor(z2, training=True)
            loss = compute_loss(p1, z2) / 2 + compute_loss(p2, z1) / 2
        learnable_params = self.encoder.trainable_variables + self.predictor.trainable_variables
        gradients = tape.gradient(loss, learnable_params)
        self.optimizer.apply_gradients(zip(gradients, learnable_params, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


images = np.random.default_rng(0).uniform(size=(75, SIZE, SIZE, 3)).astype("float32")
dataset = tf.data.Dataset.zip((view(images, 0), view(images, 1000))).batch(20).prefetch(tf.data.AUTOTUNE)
schedule = keras.optimizers.schedules.CosineDecay(0.03, 16)
model = SimSiam(make_encoder(), make_predictor())
model.compile(optimizer=keras.optimizers.SGD(schedule, momentum=0.6))
early_stopping = keras.callbacks.EarlyStopping(monitor="loss", patience=5, restore_best_weights=True, min_delta=0.0001)
history = model.fit(dataset, epochs=4, callbacks=[early_stopping], verbose=0)
