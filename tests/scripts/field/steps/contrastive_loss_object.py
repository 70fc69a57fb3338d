import keras
import numpy as np
import tensorflow as tf
from keras import ops
from recording import record


class InfoNCE(keras.losses.Loss):
    def call(self, y_true, y_pred):
        logits = ops.matmul(y_true, ops.transpose(y_pred)) / 0.3
        labels = ops.arange(ops.shape(logits)[0])
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


class Pairs(keras.Model):
    def __init__(self, tower):
        super().__init__()
        self.tower, self.loss_fn = tower, InfoNCE()

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            loss = self.loss_fn(self.tower(a), self.tower(b))
        gradients = tape.gradient(loss, self.tower.trainable_variables)
        self.optimizer.apply(gradients, self.tower.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
a = np.random.rand(30, 5).astype("float32")
tower = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), keras.layers.UnitNormalization()])
model = Pairs(tower)
model.compile(keras.optimizers.SGD(0.2))
history = model.fit(a, a * 1.1 - 0.05, epochs=2, batch_size=10, shuffle=False)
record(weights=tower.get_weights())
