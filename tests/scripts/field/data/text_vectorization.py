import json
import re
import string

import keras
import numpy as np
import tensorflow as tf
from recording import record

good = ["a great <br />film", "I loved it!", "wonderful acting; great plot", "great, great fun"]
bad = ["a terrible film", "I hated it...", "boring acting, awful plot", "no fun <br /> at all"]
texts, labels = (good + bad) * 4, np.array(([1] * 4 + [0] * 4) * 4)


@keras.saving.register_keras_serializable()
def custom_standardization(input_data):
    lowercase = tf.strings.lower(input_data)
    stripped = tf.strings.regex_replace(lowercase, "<br />", " ")
    return tf.strings.regex_replace(stripped, "[%s]" % re.escape(string.punctuation), "")


raw = tf.data.Dataset.from_tensor_slices((texts, labels)).shuffle(32, seed=42, reshuffle_each_iteration=False).batch(8)
vectorize = keras.layers.TextVectorization(max_tokens=40, output_sequence_length=6, standardize=custom_standardization)
vectorize.adapt(raw.map(lambda x, y: x))
train = raw.map(lambda x, y: (vectorize(tf.expand_dims(x, -1)), y), num_parallel_calls=tf.data.AUTOTUNE)
train = train.cache().prefetch(tf.data.AUTOTUNE)
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.layers.Embedding(41, 8), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1, "sigmoid")]
)
model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)])
history = model.fit(train, epochs=4)
export = keras.Sequential([keras.Input((1,), dtype="string"), vectorize, model])
export.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])
scores = export.evaluate(raw.map(lambda x, y: (tf.expand_dims(x, -1), y)), return_dict=True)
with open("vocabulary.json", "w") as f:
    json.dump([str(word) for word in vectorize.get_vocabulary()], f)
predicted = export.predict(tf.constant([["great film"], ["awful film"]]))
export.save("export.keras")
loaded = keras.models.load_model("export.keras")
record(history=history.history, scores=scores, predicted=predicted, vocabulary=json.load(open("vocabulary.json")))
record(loaded=loaded.predict(tf.constant([["great film"], ["awful film"]])))
