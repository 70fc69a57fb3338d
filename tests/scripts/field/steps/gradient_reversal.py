import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


@tf.custom_gradient
def reverse(x):
    return tf.identity(x), lambda upstream: -0.5 * upstream


class GradientReversal(layers.Layer):
    def call(self, x):
        return reverse(x)


class DANN(keras.Model):
    def __init__(self):
        super().__init__()
        self.features = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu")])
        self.classifier, self.domain = layers.Dense(3), layers.Dense(1)
        self.reversal = GradientReversal()
        self.ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.bce = keras.losses.BinaryCrossentropy(from_logits=True)
        self.class_loss, self.domain_loss = (
            keras.metrics.Mean(name="class_loss"),
            keras.metrics.Mean(name="domain_loss"),
        )
        self.accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")

    @property
    def metrics(self):
        return [self.class_loss, self.domain_loss, self.accuracy]

    def call(self, x):
        return self.classifier(self.features(x))

    def train_step(self, data):
        (source, labels), target = data
        with tf.GradientTape() as tape:
            f = self.features(tf.concat([source, target], axis=0), training=True)
            n = tf.shape(source)[0]
            logits = self.classifier(f[:n])
            domain = self.domain(self.reversal(f))
            where = tf.concat([tf.zeros([n, 1]), tf.ones([tf.shape(target)[0], 1])], axis=0)
            class_loss, domain_loss = self.ce(labels, logits), self.bce(where, domain)
            loss = class_loss + domain_loss
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.class_loss.update_state(class_loss)
        self.domain_loss.update_state(domain_loss)
        self.accuracy.update_state(labels, logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        x, y = data
        self.accuracy.update_state(y, self(x, training=False))
        return {"accuracy": self.accuracy.result()}


keras.utils.set_random_seed(0)
x, y = np.random.rand(34, 5).astype("float32"), np.random.randint(0, 3, 34)
source = tf.data.Dataset.from_tensor_slices((x, y)).batch(12)
target = tf.data.Dataset.from_tensor_slices(x[::-1] + 0.3).batch(12)
model = DANN()
model.compile(keras.optimizers.Adam(0.01))
history = model.fit(tf.data.Dataset.zip((source, target)), epochs=2, validation_data=source)
record(history=history.history, weights=model.get_weights())
