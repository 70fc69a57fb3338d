import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(12)
n = 44
title = np.random.randint(1, 30, (n, 6))
tags = np.random.randint(0, 2, (n, 4)).astype("float32")
priority, department = np.random.rand(n, 1).astype("float32"), np.random.randint(0, 3, n)

title_in = keras.Input((None,), name="title")
tags_in = keras.Input((4,), name="tags")
x = keras.layers.Embedding(30, 8)(title_in)
x = keras.layers.LSTM(6)(x)
x = keras.layers.concatenate([x, tags_in])
model = keras.Model(
    [title_in, tags_in],
    {
        "priority": keras.layers.Dense(1, name="priority")(x),
        "department": keras.layers.Dense(3, name="department")(x),
    },
)
model.compile(
    keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)
targets = {"priority": priority, "department": department}
one = model.fit({"title": title, "tags": tags}, targets, epochs=2, batch_size=11, shuffle=False, verbose=0)
weights = {"priority": np.ones(n), "department": np.linspace(0, 1, n)}
dataset = tf.data.Dataset.from_tensor_slices(({"title": title, "tags": tags}, targets, weights))
two = model.fit(dataset.batch(11), epochs=1, verbose=0)
predicted = model.predict({"title": title[:7], "tags": tags[:7]}, verbose=0)
by_name = model.evaluate({"title": title, "tags": tags}, targets, batch_size=11, verbose=0, return_dict=True)
record(one=one.history, two=two.history, predicted=predicted, by_name=by_name)
