import keras
import numpy as np
import tensorflow as tf
from recording import record

rng = np.random.default_rng(1)
sentences = [rng.integers(1, 20, rng.integers(2, 9)).tolist() for _ in range(36)]
tags = [[(word % 3) + 1 for word in sentence] for sentence in sentences]


def produce():
    yield from zip(sentences, tags, strict=True)


dataset = tf.data.Dataset.from_generator(
    produce, output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32))
)
padded = dataset.padded_batch(6, padded_shapes=([None], [None]))
buckets = dataset.bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [4, 7], [6, 6, 6])
keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.layers.Embedding(20, 8, mask_zero=True),
        keras.layers.Bidirectional(keras.layers.GRU(5, return_sequences=True)),
        keras.layers.Dense(4, "softmax"),
    ]
)
# Not Adam: Keras 3.15 counts one step too many for a dataset of unknown size.
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
one = model.fit(padded, epochs=2, verbose=0)
two = model.fit(buckets, epochs=2, verbose=0)
record(one=one.history, two=two.history, predicted=model.predict(np.array([[3, 4, 5, 0]]), verbose=0))
