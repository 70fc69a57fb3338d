import keras
import tensorflow as tf
from recording import record

texts = tf.constant(["good film", "a very bad film indeed", "fine", "poor plot and poor play"] * 8)
labels = tf.constant([1, 0, 1, 0] * 8)
vectorize = keras.layers.TextVectorization(max_tokens=16, output_sequence_length=5)
vectorize.adapt(texts)
data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(6).map(lambda t, y: (vectorize(t), y))
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Embedding(16, 4), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)])
model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(data, epochs=2)
record(history=history.history, vocabulary=vectorize.get_vocabulary(), predicted=model.predict(data))
