import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class MeanTeacher(keras.Model):
    def __init__(self, student, teacher, alpha=0.95):
        super().__init__()
        self.student, self.teacher, self.alpha = student, teacher, alpha
        self.ramp = tf.Variable(0.0, trainable=False, name="ramp")

    def compile(self, optimizer, **kwargs):
        super().compile(optimizer=optimizer, **kwargs)
        self.sup = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.con = keras.losses.MeanSquaredError()
        self.acc = keras.metrics.SparseCategoricalAccuracy(name="acc")

    @property
    def metrics(self):
        return [self.acc]

    def train_step(self, data):
        (x, noise), y = data
        self.ramp.assign_add(0.1)
        with tf.GradientTape() as tape:
            s = self.student(x + noise, training=True)
            t = self.teacher(x - noise, training=False)
            supervised = self.sup(y, s)
            consistency = self.con(tf.nn.softmax(t), tf.nn.softmax(s))
            loss = supervised + self.ramp * consistency
        grads = tape.gradient(loss, self.student.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.student.trainable_variables))
        for t, s in zip(self.teacher.weights, self.student.weights):
            t.assign(self.alpha * t + (1.0 - self.alpha) * s)
        self.acc.update_state(y, s)
        return {"loss": loss, "consistency": consistency, **{m.name: m.result() for m in self.metrics}}

    def test_step(self, data):
        (x, noise), y = data
        self.acc.update_state(y, self.teacher(x, training=False))
        return {"acc": self.acc.result()}


def net():
    return keras.Sequential([keras.Input((5,)), layers.Dense(12, "relu"), layers.Dense(3)])


keras.utils.set_random_seed(6)
x, y = np.random.rand(50, 5).astype("float32"), np.random.randint(0, 3, 50)
noise = 0.05 * np.random.randn(50, 5).astype("float32")
student, teacher = net(), net()
teacher.set_weights(student.get_weights())
model = MeanTeacher(student, teacher)
model.compile(keras.optimizers.Adam(0.01))
history = model.fit((x, noise), y, epochs=3, batch_size=16, shuffle=False, validation_data=((x, noise), y))
record(history=history.history, teacher=teacher.get_weights(), ramp=model.ramp.numpy())
