"""A student, a teacher that averages it, a validation step and early stopping: plain, or with tfdist's lines."""

import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x, y, more = rng.random((26, 5)).astype("float32"), rng.integers(0, 3, 26), rng.random((52, 5)).astype("float32")
labelled = tf.data.Dataset.from_tensor_slices((x, y)).batch(6)
unlabelled = tf.data.Dataset.from_tensor_slices(more).batch(12)
training = tf.data.Dataset.zip((labelled, unlabelled))
validation = tf.data.Dataset.from_tensor_slices((x[::2], y[::2])).batch(8)


def network():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])


student, teacher = network(), network()
teacher.set_weights(student.get_weights())
optimizer = keras.optimizers.AdamW(0.01)
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
consistency = keras.losses.MeanSquaredError()
error = keras.metrics.Mean()


def train(supervised, unsupervised):
    images, labels = supervised
    with tf.GradientTape() as tape:
        loss = cross_entropy(labels, student(images, training=True))
        loss += 0.5 * consistency(teacher(unsupervised), student(1.1 * unsupervised, training=True))
    gradients = tape.gradient(loss, student.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
    optimizer.apply_gradients(zip(gradients, student.trainable_variables, strict=True))
    for slow, fast in zip(teacher.variables, student.variables, strict=True):
        slow.assign(0.9 * slow + 0.1 * fast)
    return loss


def validate(images, labels):
    logits = teacher(images, training=False)
    error.update_state(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))


train_step, validation_step = (tfdist.step(train), tfdist.step(validate)) if tfdist else (train, validate)
losses, errors, best = [], [], None
for _epoch in range(4):
    for batch in tfdist.batches(training) if tfdist else training:
        losses.append(float(train_step(batch) if tfdist else train_step(*batch)))
    error.reset_state()
    for batch in tfdist.batches(validation) if tfdist else validation:
        validation_step(batch) if tfdist else validation_step(*batch)
    errors.append(float(error.result()))
    if best is None or errors[-1] < best[0]:
        best = (errors[-1], teacher.get_weights())
    elif errors[-1] > 1.5 * best[0]:
        break

if __name__ == "__main__":
    from recording import record

    record(losses=losses, errors=errors, best=best[1])
