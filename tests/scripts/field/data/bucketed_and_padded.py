import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
texts = [rng.integers(1, 20, rng.integers(2, 12)).tolist() for _ in range(37)]
labels = [len(one) % 2 for one in texts]
ds = tf.data.Dataset.from_generator(
    lambda: zip(texts, labels),
    output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)),
)
train = ds.bucket_by_sequence_length(lambda x, y: tf.shape(x)[0], [5, 9], [6, 4, 3])
test = ds.take(10).padded_batch(4, padded_shapes=([12], []))
model = keras.Sequential(
    [
        keras.layers.Embedding(20, 5, mask_zero=True),
        keras.layers.LSTM(6),
        keras.layers.Dense(1, "sigmoid"),
    ]
)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
history = model.fit(train, validation_data=test, epochs=2, verbose=0)
record(history=history.history, predicted=model.predict(test, verbose=0), weights=model.get_weights())
