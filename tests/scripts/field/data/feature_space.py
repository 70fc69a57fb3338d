import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace
from recording import record

rng = np.random.default_rng(8)
table = {
    "age": rng.normal(50, 10, 48).astype("float32"),
    "thal": rng.choice(["fixed", "normal", "reversible"], 48),
    "sex": rng.integers(0, 2, 48),
}
target = (table["age"] > 50).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((table, target))
space = FeatureSpace(
    features={
        "age": FeatureSpace.float_normalized(),
        "thal": FeatureSpace.string_categorical(num_oov_indices=0),
        "sex": FeatureSpace.integer_categorical(num_oov_indices=0),
    },
    crosses=[FeatureSpace.cross(("thal", "sex"), crossing_dim=8)],
    output_mode="concat",
)
space.adapt(dataset.batch(16).map(lambda x, _: x))
keras.utils.set_random_seed(8)
encoded = space.get_encoded_features()
hidden = keras.layers.Dense(8, "relu")(encoded)
training = keras.Model(encoded, keras.layers.Dense(1, "sigmoid")(hidden))
inference = keras.Model(space.get_inputs(), training(space.get_encoded_features()))
training.compile("adam", "binary_crossentropy", metrics=["accuracy"])
processed = dataset.batch(12).map(lambda x, y: (space(x), y)).prefetch(1)
history = training.fit(processed, epochs=3, verbose=0, validation_data=processed)
one = {"age": np.array([[61.0]]), "thal": np.array([["fixed"]]), "sex": np.array([[1]])}
record(history=history.history, predicted=inference.predict({k: tf.constant(v) for k, v in one.items()}, verbose=0))
