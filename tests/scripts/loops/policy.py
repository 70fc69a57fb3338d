"""REINFORCE on a walk: episodes are played by the script, the update is a step: plain, or with tfdist's lines."""

import sys

import keras
import numpy as np
import tensorflow as tf

tfdist = None if "--plain" in sys.argv else __import__("tfdist")

keras.utils.set_random_seed(0)
policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(2)])
optimizer = keras.optimizers.Adam(0.02)
rng = np.random.default_rng(0)


def play():
    place, states, actions = 0.0, [], []
    for time in range(10):
        state = np.array([[place, time / 10]], "float32")
        chances = keras.ops.convert_to_numpy(keras.ops.softmax(policy(state)))[0]
        action = int(rng.random() > chances[0])
        states.append(state[0])
        actions.append(action)
        place += 0.3 * (2 * action - 1)
    return np.array(states), np.array(actions), np.full(10, place, "float32")


class PolicyLoss(keras.losses.Loss):
    def call(self, y_true, y_pred):
        action, reward = y_true[:, 0], y_true[:, 1]
        chosen = tf.reduce_sum(tf.nn.log_softmax(y_pred) * tf.one_hot(tf.cast(action, tf.int32), 2), axis=1)
        return -chosen * (reward - tf.reduce_mean(reward))  # Compared with the others of the batch.


loss_fn = PolicyLoss()


@tf.function
def train(states, targets):
    with tf.GradientTape() as tape:
        loss = loss_fn(targets, policy(states, training=True))
    optimizer.apply(tape.gradient(loss, policy.trainable_variables), policy.trainable_variables)
    return loss


step = tfdist.step(train) if tfdist else lambda batch: train(*batch)
losses = []
for _episode in range(4):
    played = [play() for _ in range(3)]
    states, actions, rewards = (np.concatenate(parts) for parts in zip(*played, strict=True))
    targets = np.stack([actions.astype("float32"), rewards], axis=1)
    data = tf.data.Dataset.from_tensor_slices((states, targets)).batch(15)
    for batch in tfdist.batches(data) if tfdist else data:
        losses.append(float(step(batch)))

if __name__ == "__main__":
    from recording import record

    record(losses=losses, weights=policy.get_weights())
