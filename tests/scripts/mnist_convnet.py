"""Simple MNIST convnet, https://keras.io/examples/vision/mnist_convnet, on made-up images of its shape."""

import keras
import numpy as np
from keras import layers

num_classes = 10
input_shape = (28, 28, 1)


def data():
    rng = np.random.default_rng(0)
    y = np.arange(1000) % num_classes
    patterns = rng.random((num_classes, *input_shape))
    x = (patterns[y] * 255 * (0.5 + rng.random((1000, *input_shape)))).clip(0, 255).astype("uint8")
    x, y = x.astype("float32") / 255, keras.utils.to_categorical(y, num_classes)
    return (x[:800], y[:800]), (x[800:], y[800:])


def model():
    model = keras.Sequential(
        [
            keras.Input(shape=input_shape),
            layers.Conv2D(32, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Conv2D(64, kernel_size=(3, 3), activation="relu"),
            layers.MaxPooling2D(pool_size=(2, 2)),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(num_classes, activation="softmax"),
        ]
    )
    model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model


def main(scope, fit, evaluate, predict):
    (x_train, y_train), (x_test, y_test) = data()
    with scope():
        net = model()
    history = fit(net, x_train, y_train, batch_size=64, epochs=3, validation_split=0.1)
    return history, evaluate(net, x_test, y_test), predict(net, x_test)
