import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


def head():
    return keras.Sequential([keras.Input((6,)), layers.Dense(12, "gelu"), layers.Dense(5)])


class DINO(keras.Model):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = head(), head()
        self.teacher.set_weights(self.student.get_weights())
        self.teacher.trainable = False
        self.center = self.add_weight(shape=(1, 5), initializer="zeros", trainable=False, name="center")

    def train_step(self, data):
        a, b = data
        t = tf.concat([self.teacher(a), self.teacher(b)], axis=0)
        targets = tf.stop_gradient(tf.nn.softmax((t - self.center) / 0.5, axis=-1))
        with tf.GradientTape() as tape:
            s = tf.concat([self.student(b, training=True), self.student(a, training=True)], axis=0)
            loss = tf.reduce_mean(-tf.reduce_sum(targets * tf.nn.log_softmax(s / 0.8, axis=-1), axis=-1))
        gradients = tape.gradient(loss, self.student.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.student.trainable_variables))
        self.center.assign(0.9 * self.center + 0.1 * tf.reduce_mean(t, axis=0, keepdims=True))
        for slow, fast in zip(self.teacher.weights, self.student.weights):
            slow.assign(0.97 * slow + 0.03 * fast)
        return {"dino": loss}


keras.utils.set_random_seed(0)
x = np.random.rand(34, 6).astype("float32")
model = DINO()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(x, x[:, ::-1].copy(), epochs=2, batch_size=12, shuffle=False)
record(history=history.history, center=model.center.numpy(), weights=model.student.get_weights())
