import keras
import numpy as np
import tensorflow as tf
from recording import record


class EmbeddingModel(keras.Model):
    def train_step(self, data):
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            a, p = self(anchors, training=True), self(positives, training=True)
            similarities = keras.ops.einsum("ae,pe->ap", a, p) / 0.2
            labels = keras.ops.arange(keras.ops.shape(similarities)[0])
            loss = self.compute_loss(y=labels, y_pred=similarities, sample_weight=None)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


keras.utils.set_random_seed(0)
a = np.random.rand(32, 5).astype("float32")
p = a + 0.1
inputs = keras.Input((5,))
model = EmbeddingModel(inputs, keras.layers.UnitNormalization()(keras.layers.Dense(4)(inputs)))
model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
history = model.fit(a, p, epochs=2, batch_size=8, shuffle=False)
record(weights=model.get_weights())
