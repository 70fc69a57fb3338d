# A loop of one's own whose loss compares the examples of a batch: with tfdist's lines where tfdist runs it.
import keras
import numpy as np
import tensorflow as tf
from recording import record

import tfdist
from tfdist.keras_fit import connect

distributed = connect.current_cluster() is not None  # Not in the trial of Keras alone.
keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
data = tf.data.Dataset.from_tensor_slices((x, x[:, ::-1].copy())).batch(8)
tower = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
slow = keras.models.clone_model(tower)
slow.set_weights(tower.get_weights())
optimizer, mean = keras.optimizers.Adam(0.01), keras.metrics.Mean()


def train(one, two):
    with tf.GradientTape() as tape:
        a, b = tf.math.l2_normalize(tower(one), axis=1), tf.math.l2_normalize(slow(two), axis=1)
        logits = tf.matmul(a, b, transpose_b=True) / 0.2
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(a)[0]), logits))
    optimizer.apply(tape.gradient(loss, tower.trainable_variables), tower.trainable_variables)
    for old, new in zip(slow.weights, tower.weights):
        old.assign(0.9 * old + 0.1 * new)
    mean.update_state(loss)
    return {"loss": loss, "rank": tf.reduce_sum(tf.linalg.diag_part(logits))}


step = tfdist.step(train) if distributed else tf.function(train)
values, means = [], []
for epoch in range(2):
    for batch in tfdist.batches(data) if distributed else data:
        found = step(batch) if distributed else step(*batch)
        values.append([float(found["loss"]), float(found["rank"])])
    means.append(float(mean.result()))
    mean.reset_state()
record(values=values, means=means, weights=tower.get_weights(), slow=slow.get_weights())
