"""CSV files read by tf.data, with a feature dictionary and preprocessing layers, as in TensorFlow's guide."""

import csv

import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
for part in range(3):
    with open(f"part{part}.csv", "w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(["age", "fare", "port", "survived"])
        for _ in range(16):
            age = rng.integers(1, 80)
            writer.writerow([age, f"{rng.random() * 100:.2f}", "SCQ"[rng.integers(3)], int(age < 30)])
dataset = tf.data.experimental.make_csv_dataset(
    "part*.csv", batch_size=8, label_name="survived", num_epochs=1, shuffle=False
)
columns = {"age": [], "fare": [], "port": []}
for batch, _ in dataset:
    for key in columns:
        columns[key].append(batch[key].numpy())
columns = {key: np.concatenate(value) for key, value in columns.items()}
age, fare = keras.layers.Normalization(axis=None), keras.layers.Discretization(num_bins=4)
age.adapt(columns["age"].astype("float32"))
fare.adapt(columns["fare"].astype("float32"))
port = keras.layers.StringLookup(output_mode="one_hot")
port.adapt(columns["port"])


def prepare(batch, label):
    return {
        "age": age(tf.cast(batch["age"], tf.float32)),
        "fare": fare(batch["fare"]),
        "port": port(batch["port"]),
    }, label


inputs = {
    "age": keras.Input((), name="age"),
    "fare": keras.Input((), name="fare", dtype="int64"),
    "port": keras.Input((4,), name="port"),
}
parts = [
    keras.layers.Reshape((1,))(inputs["age"]),
    keras.layers.Flatten()(keras.layers.Embedding(5, 2)(keras.layers.Reshape((1,))(inputs["fare"]))),
    inputs["port"],
]
output = keras.layers.Dense(1, "sigmoid")(keras.layers.Dense(6, "relu")(keras.layers.Concatenate()(parts)))
model = keras.Model(inputs, output)
model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset.map(prepare).cache(), epochs=3, verbose=2)
record(history=history.history, vocabulary=port.get_vocabulary())
