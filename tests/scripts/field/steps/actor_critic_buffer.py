import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class PPO(keras.Model):
    def __init__(self, actor, critic):
        super().__init__()
        self.actor, self.critic = actor, critic
        self.policy_optimizer, self.value_optimizer = keras.optimizers.Adam(3e-3), keras.optimizers.Adam(1e-2)

    def train_step(self, data):
        state, action, old, advantage, value = data[0]
        with tf.GradientTape(persistent=True) as tape:
            log_probabilities = tf.nn.log_softmax(self.actor(state, training=True))
            chosen = tf.reduce_sum(tf.one_hot(action, 2) * log_probabilities, axis=1)
            ratio = tf.exp(chosen - old)
            clipped = tf.where(advantage > 0, 1.2 * advantage, 0.8 * advantage)
            entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(log_probabilities) * log_probabilities, axis=1))
            policy_loss = -tf.reduce_mean(tf.minimum(ratio * advantage, clipped)) - 0.01 * entropy
            value_loss = tf.reduce_mean((value - tf.squeeze(self.critic(state, training=True), 1)) ** 2)
        gradients = tape.gradient(policy_loss, self.actor.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.05)
        self.policy_optimizer.apply_gradients(zip(gradients, self.actor.trainable_variables))
        gradients = tape.gradient(value_loss, self.critic.trainable_variables)
        self.value_optimizer.apply_gradients(zip(gradients, self.critic.trainable_variables))
        kl = tf.reduce_mean(old - chosen)
        return {"policy": policy_loss, "value": value_loss, "kl": kl}


def network(outputs):
    return keras.Sequential([keras.Input((3,)), layers.Dense(8, "tanh"), layers.Dense(outputs)])


keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
agent = PPO(network(2), network(1))
agent.compile()
found = []
for epoch in range(2):
    states = rng.normal(size=(33, 3)).astype("float32")
    logits = agent.actor.predict(states, verbose=0)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    actions = (rng.random(33) > probabilities[:, 0]).astype("int64")
    old = np.log(probabilities[np.arange(33), actions]).astype("float32")
    rewards = (states[:, 0] * (2 * actions - 1)).astype("float32")
    advantages = (rewards - rewards.mean()) / rewards.std()
    data = (states, actions, old, advantages, rewards)
    history = agent.fit(data, epochs=2, batch_size=16, shuffle=False, verbose=0)
    found.append({"reward": float(rewards.mean()), **history.history})
record(found=found, actor=agent.actor.get_weights(), critic=agent.critic.get_weights())
