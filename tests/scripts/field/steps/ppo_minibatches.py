# After keras.io's "Proximal Policy Optimization" and Stable-Baselines: advantages normalised over the batch, several
# passes over slices of it, and no more policy updates once the divergence is large.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class PPO(keras.Model):
    def __init__(self):
        super().__init__()
        self.actor = keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(3)])
        self.critic = keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])
        self.actor_optimizer, self.critic_optimizer = keras.optimizers.Adam(0.02), keras.optimizers.Adam(0.02)

    def train_step(self, data):
        states, actions, returns = data
        before = tf.gather(tf.nn.log_softmax(self.actor(states)), actions, batch_dims=1)
        advantages = returns - self.critic(states)[:, 0]
        advantages = (advantages - tf.reduce_mean(advantages)) / (tf.math.reduce_std(advantages) + 1e-6)
        advantages, going, kl = tf.stop_gradient(advantages), tf.constant(1.0), tf.constant(0.0)
        before, size = tf.stop_gradient(before), tf.shape(states)[0]
        for _ in range(2):
            for part in range(2):
                rows = slice(part * (size + 1) // 2, (part + 1) * (size + 1) // 2)
                with tf.GradientTape() as tape:
                    logs = tf.gather(tf.nn.log_softmax(self.actor(states[rows])), actions[rows], batch_dims=1)
                    ratio = tf.exp(logs - before[rows])
                    clipped = tf.clip_by_value(ratio, 0.9, 1.1)
                    gain = tf.minimum(ratio * advantages[rows], clipped * advantages[rows])
                    loss = -tf.reduce_sum(gain) / tf.cast(tf.maximum(tf.size(gain), 1), tf.float32)
                gradients = [going * g for g in tape.gradient(loss, self.actor.trainable_variables)]
                self.actor_optimizer.apply_gradients(zip(gradients, self.actor.trainable_variables))
            after = tf.gather(tf.nn.log_softmax(self.actor(states)), actions, batch_dims=1)
            kl = tf.reduce_mean(before - after)
            going = tf.where(kl > 0.01, 0.0, going)
        with tf.GradientTape() as tape:
            value_loss = tf.reduce_mean(tf.square(returns - self.critic(states)[:, 0]))
        variables = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients(zip(tape.gradient(value_loss, variables), variables))
        return {"kl": kl, "going": going, "value": value_loss}


keras.utils.set_random_seed(0)
x, actions = np.random.rand(33, 4).astype("float32"), np.random.randint(0, 3, 33)
model = PPO()
model.compile()
data = tf.data.Dataset.from_tensor_slices((x, actions, np.random.rand(33).astype("float32"))).batch(8)
history = model.fit(data, epochs=2)
record(history=history.history, actor=model.actor.get_weights(), critic=model.critic.get_weights())
