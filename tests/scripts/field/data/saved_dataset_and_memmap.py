import glob
import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

rng = np.random.default_rng(3)
big = np.memmap("features.dat", dtype="float32", mode="w+", shape=(60, 5))
big[:] = rng.random((60, 5))
big.flush()
del big
features = np.memmap("features.dat", dtype="float32", mode="r", shape=(60, 5))
labels = rng.integers(0, 2, 60).astype("int32")
labels.tofile("labels.bin")
labels = np.fromfile("labels.bin", dtype="int32")
np.asarray(features).dump("features.pickle")
dataset = tf.data.Dataset.from_tensor_slices((np.array(features), labels))
dataset.save("saved")
again = tf.data.Dataset.load("saved").batch(12)
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "relu"), keras.layers.Dense(1, "sigmoid")])
model.compile("adam", "binary_crossentropy")
one = model.fit(again, epochs=2, verbose=0)
two = model.fit(features, labels, epochs=2, batch_size=12, shuffle=False, verbose=0)
cached = tf.data.Dataset.from_tensor_slices((np.array(features), labels)).batch(12).cache("cache/data")
os.makedirs("cache", exist_ok=True)
three = model.fit(cached, epochs=2, verbose=0)
snapshot = tf.data.Dataset.from_tensor_slices((np.array(features), labels)).snapshot("snapshot").batch(12)
four = model.fit(snapshot, epochs=2, verbose=0)
record(one=one.history, two=two.history, three=three.history, four=four.history)
record(size=os.path.getsize("labels.bin"), saved=len(glob.glob("saved/*/")))
