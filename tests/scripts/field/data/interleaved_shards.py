"""Writes shards of TFRecords, reads them interleaved and seeded, as large image pipelines do."""

import glob
import os

import keras
import numpy as np
import tensorflow as tf
from recording import record

AUTOTUNE = tf.data.AUTOTUNE


def example(image, label):
    feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[tf.io.encode_png(image).numpy()])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write():
    rng = np.random.default_rng(6)
    os.makedirs("records", exist_ok=True)
    for shard in range(4):
        with tf.io.TFRecordWriter(f"records/{shard:02d}-of-04.tfrecord") as writer:
            for _ in range(9):
                label = int(rng.integers(2))
                image = (rng.random((6, 6, 1)) * 127 + 128 * label).astype("uint8")
                writer.write(example(image, label))


def parse(serialized):
    feature = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(serialized, feature)
    image = tf.image.convert_image_dtype(tf.io.decode_png(parsed["image"], 1), tf.float32)
    return tf.ensure_shape(image, (6, 6, 1)), parsed["label"]


if not glob.glob("records/*.tfrecord"):
    write()
files = tf.data.Dataset.list_files("records/*.tfrecord", shuffle=True, seed=4)
dataset = files.interleave(
    tf.data.TFRecordDataset, cycle_length=2, block_length=3, num_parallel_calls=2, deterministic=True
)
dataset = dataset.shuffle(36, seed=1).map(parse, num_parallel_calls=AUTOTUNE).batch(6).prefetch(AUTOTUNE)
keras.utils.set_random_seed(2)
model = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(1, "sigmoid")])
model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs=2, verbose=0)
record(loss=history.history["loss"], files=sorted(os.listdir("records")))
