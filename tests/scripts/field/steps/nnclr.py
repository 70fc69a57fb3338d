# After keras.io's "Self-supervised contrastive learning with NNCLR": neighbours in a queue that the batch renews.
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record


class NNCLR(keras.Model):
    def __init__(self, queue_size=16, width=5):
        super().__init__()
        self.correlation_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(width)])
        self.projection_head = keras.Sequential([keras.Input((width,)), layers.Dense(width)])
        queue = keras.random.normal((queue_size, width), seed=3)
        self.feature_queue = keras.Variable(keras.utils.normalize(queue, axis=1, order=2), trainable=False)

    def nearest_neighbour(self, projections):
        similarities = ops.matmul(projections, ops.transpose(self.feature_queue))
        neighbours = ops.take(self.feature_queue, ops.argmax(similarities, axis=1), axis=0)
        return projections + ops.stop_gradient(neighbours - projections)

    def contrastive_loss(self, one, two):
        one, two = keras.utils.normalize(one, axis=1, order=2), keras.utils.normalize(two, axis=1, order=2)
        self.correlation_accuracy.update_state(
            ops.concatenate((ops.arange(ops.shape(one)[0]),) * 2),
            ops.concatenate((ops.matmul(one, ops.transpose(two)), ops.matmul(two, ops.transpose(one)))),
        )
        logits = ops.matmul(self.nearest_neighbour(one), ops.transpose(two)) / 0.1
        back = ops.matmul(self.nearest_neighbour(two), ops.transpose(one)) / 0.1
        labels = ops.arange(ops.shape(one)[0])
        both = ops.concatenate([labels, labels], axis=0), ops.concatenate([logits, back], axis=0)
        loss = keras.losses.sparse_categorical_crossentropy(*both, from_logits=True)
        self.feature_queue.assign(ops.concatenate([one, self.feature_queue[: -ops.shape(one)[0]]], axis=0))
        return loss

    def train_step(self, data):
        one, two = data
        with tf.GradientTape() as tape:
            loss = self.contrastive_loss(*(self.projection_head(self.encoder(part)) for part in (one, two)))
        variables = self.encoder.trainable_weights + self.projection_head.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"c_loss": ops.mean(loss), "c_acc": self.correlation_accuracy.result()}


keras.utils.set_random_seed(0)
x = np.random.rand(33, 6).astype("float32")
model = NNCLR()
model.compile(optimizer=keras.optimizers.Adam(0.01))
history = model.fit(x, x[:, ::-1].copy(), batch_size=8, epochs=2, shuffle=False)
record(history=history.history, queue=model.feature_queue.numpy(), weights=model.encoder.get_weights())
