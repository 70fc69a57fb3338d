# After keras.io's "Semi-supervised image classification using contrastive pretraining with SimCLR": two optimizers,
# a linear probe, and labelled batches whose last one is smaller than that of the unlabelled ones.
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from recording import record

# refused on several replicas: A batch holds tensors of different numbers of rows


class ContrastiveModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(5)])
        self.linear_probe = keras.Sequential([keras.Input((5,)), layers.Dense(3)])

    def compile(self, contrastive_optimizer, probe_optimizer):
        super().compile()
        self.contrastive_optimizer, self.probe_optimizer = contrastive_optimizer, probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.c_loss, self.p_loss = keras.metrics.Mean(name="c_loss"), keras.metrics.Mean(name="p_loss")
        self.p_acc = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    def train_step(self, data):
        unlabeled, (labeled, labels) = data
        images = ops.concatenate((unlabeled, labeled), axis=0)
        with tf.GradientTape() as tape:
            a, b = (ops.normalize(self.encoder(part), axis=1) for part in (images, images[:, ::-1]))
            similarities, target = ops.matmul(a, ops.transpose(b)) / 0.1, ops.arange(ops.shape(a)[0])
            both = (similarities, ops.transpose(similarities))
            loss = sum(
                ops.mean(keras.losses.sparse_categorical_crossentropy(target, s, from_logits=True)) for s in both
            )
        gradients = tape.gradient(loss, self.encoder.trainable_weights)
        self.contrastive_optimizer.apply_gradients(zip(gradients, self.encoder.trainable_weights))
        self.c_loss.update_state(loss)
        with tf.GradientTape() as tape:
            logits = self.linear_probe(self.encoder(labeled, training=False))
            loss = self.probe_loss(labels, logits)
        gradients = tape.gradient(loss, self.linear_probe.trainable_weights)
        self.probe_optimizer.apply_gradients(zip(gradients, self.linear_probe.trainable_weights))
        self.p_loss.update_state(loss)
        self.p_acc.update_state(labels, logits)
        return {m.name: m.result() for m in (self.c_loss, self.p_loss, self.p_acc)}


keras.utils.set_random_seed(0)
x, y = np.random.rand(46, 6).astype("float32"), np.random.randint(0, 3, 13)
data = tf.data.Dataset.zip(
    (tf.data.Dataset.from_tensor_slices(x[13:45]).batch(8), tf.data.Dataset.from_tensor_slices((x[:13], y)).batch(4))
)
model = ContrastiveModel()
model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1))
history = model.fit(data, epochs=2)
record(history=history.history, weights=model.encoder.get_weights(), probe=model.linear_probe.get_weights())
