import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(21)
x = np.random.normal(size=(50, 4)).astype("float32")
y = keras.utils.to_categorical(np.random.randint(0, 4, 50), num_classes=4)
x = keras.utils.normalize(x, axis=1)
train, test = keras.utils.split_dataset((x, y), left_size=0.8, shuffle=True, seed=3)
sequences = keras.utils.pad_sequences([[1, 2, 3], [4, 5], [6]], maxlen=3, padding="post")
series = keras.utils.timeseries_dataset_from_array(
    np.arange(20.0), np.arange(20.0) * 2, sequence_length=4, batch_size=5
)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(4, "softmax")])
model.compile("adam", "categorical_crossentropy", metrics=["accuracy", keras.metrics.TopKCategoricalAccuracy(2)])
history = model.fit(train.batch(8), validation_data=test.batch(8), epochs=3, verbose=0)
regressor = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
regressor.compile("sgd", "mae")
fitted = regressor.fit(series.map(lambda a, b: (a / 20, b / 40)), epochs=2, verbose=0)
options = tf.data.Options()
options.deterministic = True
both = tf.data.Dataset.zip((train.repeat(), test.repeat())).take(16).with_options(options)
mixed = both.map(lambda a, b: ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)).batch(4)
last = model.fit(mixed, epochs=1, verbose=0)
record(history=history.history, sequences=sequences, fitted=fitted.history, last=last.history)
record(progress=keras.utils.to_categorical([0, 2]), order=[int(one[1].numpy().argmax()) for one in test])
