import keras
import numpy as np
import tensorflow as tf
from recording import record


class DQN(keras.Model):
    def __init__(self, net, target):
        super().__init__()
        self.net, self.target = net, target
        self.huber = keras.losses.Huber()

    def train_step(self, data):
        state, action, reward = data["s"], data["a"], data["r"]
        wanted = reward + 0.9 * tf.reduce_max(self.target(state), axis=1)
        with tf.GradientTape() as tape:
            q = tf.reduce_sum(self.net(state) * tf.one_hot(action, 3), axis=1)
            loss = self.huber(wanted, q)
        gradients = tape.gradient(loss, self.net.trainable_variables)
        self.optimizer.apply(gradients, self.net.trainable_variables)
        for slow, fast in zip(self.target.weights, self.net.weights):
            slow.assign(0.9 * slow + 0.1 * fast)
        return {"loss": loss}


keras.utils.set_random_seed(0)
data = {"s": np.random.rand(40, 4).astype("float32"), "a": np.random.randint(0, 3, 40)}
data["r"] = np.random.rand(40).astype("float32")


def make():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])


net, target = make(), make()
target.set_weights(net.get_weights())
model = DQN(net, target)
model.compile(keras.optimizers.Adam(0.01))
model.fit(data, None, epochs=2, batch_size=10, shuffle=False)
record(net=net.get_weights(), target=target.get_weights())
