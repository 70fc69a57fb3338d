"""Text classification from scratch, https://keras.io/examples/nlp/text_classification_from_scratch, on made-up text."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

max_features, embedding_dim, sequence_length = 500, 32, 50


def data():
    rng = np.random.default_rng(3)
    words = np.array([f"word{index}" for index in range(300)])
    labels = np.arange(600) % 2
    # Some words are said in good reviews, some in bad ones.
    reviews = [" ".join(rng.choice(words[60 * label : 240 + 60 * label], rng.integers(20, 60))) for label in labels]
    raw = tf.data.Dataset.from_tensor_slices((reviews, labels.astype("float32")))
    vectorize_layer = layers.TextVectorization(
        max_tokens=max_features, output_mode="int", output_sequence_length=sequence_length
    )
    vectorize_layer.adapt(reviews)

    def vectorize_text(text, label):
        return vectorize_layer(text), label

    ds = raw.batch(32).map(vectorize_text).cache()
    return ds.take(15), ds.skip(15)


def model():
    inputs = keras.Input(shape=(None,), dtype="int64")
    x = layers.Embedding(max_features, embedding_dim)(inputs)
    x = layers.Dropout(0.5)(x)
    x = layers.Conv1D(32, 7, padding="valid", activation="relu", strides=3)(x)
    x = layers.GlobalMaxPooling1D()(x)
    x = layers.Dense(32, activation="relu")(x)
    x = layers.Dropout(0.5)(x)
    predictions = layers.Dense(1, activation="sigmoid", name="predictions")(x)
    model = keras.Model(inputs, predictions)
    model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model


def main(scope, fit, evaluate, predict):
    train_ds, test_ds = data()
    with scope():
        net = model()
    history = fit(net, train_ds, validation_data=test_ds, epochs=6)
    return history, evaluate(net, test_ds), predict(net, test_ds)
