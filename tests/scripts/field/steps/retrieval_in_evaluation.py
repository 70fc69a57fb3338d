# After keras.io's "Metric learning for image similarity search", with recall in the batch by test_step and
# scores that predict_step centres over the batch.
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from recording import record


class Retrieval(keras.Model):
    def compile(self, **options):
        super().compile(**options)
        self.recall = keras.metrics.Mean(name="recall")

    def scores(self, x, training=False):
        e = tf.math.l2_normalize(self(x, training=training), axis=1)
        return tf.matmul(e, e, transpose_b=True) - 2.0 * tf.eye(tf.shape(e)[0])

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            same = tf.cast((y[:, None] == y[None]) & ~tf.eye(tf.shape(y)[0], dtype=tf.bool), tf.float32)
            logs = tf.nn.log_softmax(self.scores(x, training=True) / 0.2)
            loss = -tf.reduce_sum(same * logs) / tf.maximum(tf.reduce_sum(same), 1.0)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def test_step(self, data):
        x, y = data
        scores = self.scores(x)
        nearest = tf.gather(y, tf.argmax(scores, axis=1))
        self.recall.update_state(tf.cast(nearest == y, tf.float32))
        return {
            "recall": self.recall.result(),
            "largest": tf.reduce_max(scores),
            "rows": tf.cast(tf.shape(x)[0], tf.float32),
        }

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        e = self(x, training=False)
        centred = e - tf.reduce_mean(e, axis=0)
        ranks = tf.argsort(tf.argsort(e[:, 0]))
        return {"centred": centred, "rank": ranks}


keras.utils.set_random_seed(0)
x, y = np.random.rand(33, 5).astype("float32"), np.random.randint(0, 4, 33)
inputs = keras.Input((5,))
model = Retrieval(inputs, layers.Dense(3)(layers.Dense(8, "relu")(inputs)))
model.compile(optimizer=keras.optimizers.Adam(0.02))
history = model.fit(
    x, y, batch_size=8, epochs=2, shuffle=False, validation_data=(x[:17], y[:17]), validation_batch_size=4
)
tested = model.evaluate(x, y, batch_size=8, return_dict=True)
predicted = model.predict(x, batch_size=8)
record(history=history.history, tested=tested, predicted=predicted, weights=model.get_weights())
