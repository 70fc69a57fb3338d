"""Prints the milliseconds of a training step: python -m tfdist.cluster.devices.onednn_step

`onednn.py` runs it once with oneDNN and once without. The smallest processor time of several turns counts, so that
other programs disturb little.
"""

import time

import tensorflow as tf

_TURNS, _STEPS = 5, 4


def step_milliseconds() -> float:
    """Returns milliseconds of processor time of a step: two convolutions, two dense layers, 32 images of 28x28."""
    shapes = ([5, 5, 1, 32], [5, 5, 32, 64], [7 * 7 * 64, 128], [128, 10])
    weights = [tf.Variable(tf.random.stateless_normal(shape, [index, 0]) * 0.05) for index, shape in enumerate(shapes)]
    images = tf.random.stateless_normal([32, 28, 28, 1], [7, 0])
    labels = tf.range(32) % 10

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            first = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(images, weights[0], 1, "SAME")), 2, 2, "VALID")
            second = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(first, weights[1], 1, "SAME")), 2, 2, "VALID")
            hidden = tf.nn.relu(tf.reshape(second, [32, -1]) @ weights[2])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ weights[3])
            loss = tf.reduce_mean(losses)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    step()
    times = []
    for _ in range(_TURNS):
        start = time.process_time()
        for _ in range(_STEPS):
            step()
        times.append((time.process_time() - start) / _STEPS)
    return 1000 * min(times)


if __name__ == "__main__":
    print(step_milliseconds())
