# Labelled batches are half as large as those without labels; in the second data set the last one differs more.
import keras
import numpy as np
import tensorflow as tf
from recording import record

# refused on several replicas: A batch holds tensors of different numbers of rows


class Consistent(keras.Model):
    def train_step(self, data):
        (labelled, labels), unlabelled = data
        with tf.GradientTape() as tape:
            supervised = self.compute_loss(labelled, labels, self(labelled, training=True))
            a, b = self(unlabelled, training=True), self(unlabelled + 0.1, training=True)
            loss = supervised + 0.5 * keras.losses.KLDivergence()(a, b)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def fit(count):
    keras.utils.set_random_seed(0)
    x, y = np.random.rand(count, 4).astype("float32"), np.random.randint(0, 3, count)
    labelled = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    unlabelled = tf.data.Dataset.from_tensor_slices(np.random.rand(32, 4).astype("float32")).batch(8)
    inputs = keras.Input((4,))
    model = Consistent(inputs, keras.layers.Dense(3, "softmax")(inputs))
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(tf.data.Dataset.zip((labelled, unlabelled)), epochs=2, verbose=0)
    return model.get_weights()


record(halves=fit(16))
record(others=fit(13))
