import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

rng = np.random.default_rng(4)
x, y = rng.normal(size=(60, 5)).astype("float32"), rng.integers(0, 2, 60).astype("float32")


def make(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


members, scores = [], []
for seed in range(3):
    member = make(seed)
    member.fit(x[:48], y[:48], epochs=2, batch_size=12, shuffle=False, verbose=0)
    scores.append(member.evaluate(x[48:], y[48:], verbose=0, return_dict=True))
    members.append(member)
os.makedirs("models")
members[0].save("models/zero.keras")
members[1].save("models/one.h5")
members[2].export("models/two", verbose=False)
members[2].save_weights("models/two.weights.h5")
zero = keras.models.load_model("models/zero.keras")
one = keras.models.load_model("models/one.h5")
two = keras.layers.TFSMLayer("models/two", call_endpoint="serve")
three = tf.saved_model.load("models/two")
again = make(9)
again.load_weights("models/two.weights.h5")
mean = np.mean([zero.predict(x, verbose=0), one.predict(x, verbose=0), np.asarray(two(x))], axis=0)
record(
    scores=scores, mean=mean, served=three.serve(x).numpy(), again=again.predict(x), files=sorted(os.listdir("models"))
)
