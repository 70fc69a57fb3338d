"""Mixes the images of two data sets and their labels, after https://keras.io/examples/vision/mixup."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(42)
BATCH_SIZE, CLASSES, SIZE = 16, 4, 12


def sample_beta_distribution(size, concentration_0=0.2, concentration_1=0.2):
    gamma_1_sample = tf.random.gamma(shape=[size], alpha=concentration_1)
    gamma_2_sample = tf.random.gamma(shape=[size], alpha=concentration_0)
    return gamma_1_sample / (gamma_1_sample + gamma_2_sample)


def mix_up(ds_one, ds_two, alpha=0.2):
    images_one, labels_one = ds_one
    images_two, labels_two = ds_two
    batch_size = tf.shape(images_one)[0]
    weights = sample_beta_distribution(batch_size, alpha, alpha)
    x_l = tf.reshape(weights, (batch_size, 1, 1, 1))
    y_l = tf.reshape(weights, (batch_size, 1))
    images = images_one * x_l + images_two * (1 - x_l)
    labels = labels_one * y_l + labels_two * (1 - y_l)
    return images, labels


rng = np.random.default_rng(0)
labels = np.arange(100) % CLASSES
x = (rng.uniform(size=(CLASSES, SIZE, SIZE, 1))[labels] + rng.normal(0, 0.1, (100, SIZE, SIZE, 1))).astype("float32")
y = keras.utils.to_categorical(labels, CLASSES).astype("float32")
x_train, y_train, x_val, y_val = x[:80], y[:80], x[80:], y[80:]
train_ds_one = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(BATCH_SIZE * 5, seed=1).batch(BATCH_SIZE)
train_ds_two = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(BATCH_SIZE * 5, seed=2).batch(BATCH_SIZE)
train_ds = tf.data.Dataset.zip((train_ds_one, train_ds_two))
val_ds = tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(BATCH_SIZE)
train_ds_mu = train_ds.map(lambda ds_one, ds_two: mix_up(ds_one, ds_two, alpha=0.2), num_parallel_calls=1)

model = keras.Sequential(
    [
        keras.Input((SIZE, SIZE, 1)),
        layers.Conv2D(8, (5, 5), padding="same", activation="relu"),
        layers.MaxPooling2D(pool_size=(2, 2)),
        layers.Conv2D(16, (3, 3), padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(16, activation="relu"),
        layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer=keras.optimizers.SGD(0.1), metrics=["accuracy"])
history = model.fit(train_ds_mu, validation_data=val_ds, epochs=3, verbose=0)
