"""Convolutional autoencoder, https://keras.io/examples/vision/autoencoder, on made-up images of half its size."""

import keras
import numpy as np
from keras import layers


def data():
    rng = np.random.default_rng(1)
    rows, columns = np.arange(12)[:, None], np.arange(12)
    phase = rng.random((600, 2, 1, 1)) * 6
    images = 0.5 + 0.25 * (np.sin(rows / 2 + phase[:, 0]) + np.cos(columns / 2 + phase[:, 1]))
    images = images[..., None].astype("float32")
    noisy = np.clip(images + 0.3 * rng.standard_normal(images.shape), 0.0, 1.0).astype("float32")
    return noisy, images


def model():
    inputs = layers.Input(shape=(12, 12, 1))
    x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(inputs)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    x = layers.Conv2D(16, (3, 3), activation="relu", padding="same")(x)
    x = layers.MaxPooling2D((2, 2), padding="same")(x)
    x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2DTranspose(16, (3, 3), strides=2, activation="relu", padding="same")(x)
    x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
    autoencoder = keras.Model(inputs, x)
    autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
    return autoencoder


def main(scope, fit, evaluate, predict):
    noisy, images = data()
    with scope():
        autoencoder = model()
    history = fit(
        autoencoder,
        x=noisy[:500],
        y=images[:500],
        epochs=3,
        batch_size=32,
        shuffle=False,
        validation_data=(noisy[500:], images[500:]),
    )
    return history, evaluate(autoencoder, noisy[500:], images[500:]), predict(autoencoder, noisy[500:])
