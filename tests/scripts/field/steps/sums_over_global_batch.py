import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record

BATCH = 12


class Summed(keras.Model):
    """As in TensorFlow's tutorials on distribution: sums that are divided by the global batch size."""

    def compile(self, optimizer):
        super().compile(optimizer=optimizer)
        self.loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        self.total_loss = keras.losses.MeanSquaredError(reduction="sum")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            per_example = self.loss_object(y, y_pred)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=BATCH)
            loss += 0.01 * self.total_loss(tf.one_hot(y, 3), tf.nn.softmax(y_pred))
            loss += tf.add_n(self.losses) + 0.001 * tf.reduce_sum(tf.square(y_pred))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        correct = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(y_pred, 1), tf.cast(y, tf.int64)), tf.float32))
        return {"objective": loss, "correct": correct}


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 5).astype("float32"), np.random.randint(0, 3, 40)
inputs = keras.Input((5,))
model = Summed(inputs, layers.Dense(3, kernel_regularizer="l2")(layers.Dense(8, "relu")(inputs)))
model.compile(keras.optimizers.SGD(0.05))
history = model.fit(x, y, epochs=2, batch_size=BATCH, shuffle=False)
record(history=history.history, weights=model.get_weights())
