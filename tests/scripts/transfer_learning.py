"""Transfer learning and fine-tuning, https://keras.io/guides/transfer_learning, on made-up images."""

import keras
import numpy as np
from keras import layers


def data():
    rng = np.random.default_rng(4)
    labels = np.arange(240) % 2
    images = rng.random((240, 32, 32, 3)) * 255
    images[..., 0] *= 0.4 + 0.6 * labels[:, None, None]
    return images.astype("float32"), labels.astype("float32")


def base():
    """Stands for a network of keras.applications, and for its weights."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((32, 32, 3))
    x = inputs
    for filters in (8, 16, 32):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
        # Over the global batch: when it is fine-tuned, the numbers shall not depend on how many replicas there are.
        x = layers.BatchNormalization(synchronized=True)(x)
        x = layers.ReLU()(x)
    return keras.Model(inputs, x, name="base")


def model():
    base_model = base()
    base_model.trainable = False
    inputs = keras.Input(shape=(32, 32, 3))
    x = layers.Rescaling(scale=1 / 127.5, offset=-1)(inputs)
    x = base_model(x, training=False)  # Its batch normalisation stays in inference mode after unfreezing, too.
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(1)(x)
    return keras.Model(inputs, outputs), base_model


def compile(model, rate):
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy()],
    )


def main(scope, fit, evaluate, predict):
    images, labels = data()
    train, test = (images[:200], labels[:200]), (images[200:], labels[200:])
    with scope():
        net, base_model = model()
        compile(net, 1e-2)
    fit(net, *train, batch_size=40, epochs=3, shuffle=False)
    with scope():  # Unfreeze the base model, and train the entire model end-to-end with a low learning rate.
        base_model.trainable = True
        compile(net, 1e-4)
    history = fit(net, *train, batch_size=40, epochs=2, shuffle=False, validation_data=test)
    return history, evaluate(net, *test), predict(net, test[0])
