"""Contrastive pretraining and a linear probe, after https://keras.io/examples/vision/semisupervised_simclr.

Unchanged: the loss compares all images of the global batch.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(1)
SIZE, WIDTH, CLASSES = 12, 16, 5


def augment(image, seed, area, brightness):
    image = tf.image.stateless_random_flip_left_right(image, [seed, 0])
    size = int(SIZE * area**0.5)
    image = tf.image.resize(tf.image.stateless_random_crop(image, (size, size, 3), [seed, 1]), (SIZE, SIZE))
    return image * tf.random.stateless_uniform([3], [seed, 2], 1 - brightness, 1 + brightness)


def views(seed, example):
    image, label = example
    first, second = augment(image, 3 * seed, 0.25, 0.6), augment(image, 3 * seed + 1, 0.25, 0.6)
    return first, second, augment(image, 3 * seed + 2, 0.75, 0.3), label


class ContrastiveModel(keras.Model):
    def __init__(self, temperature=0.1):
        super().__init__()
        self.temperature = temperature
        self.encoder = keras.Sequential(
            [
                keras.Input((SIZE, SIZE, 3)),
                layers.Conv2D(8, 3, strides=2, activation="relu"),
                layers.Conv2D(8, 3, strides=2, activation="relu"),
                layers.Flatten(),
                layers.Dense(WIDTH, activation="relu"),
            ],
            name="encoder",
        )
        self.projection_head = keras.Sequential(
            [keras.Input((WIDTH,)), layers.Dense(WIDTH, activation="relu"), layers.Dense(WIDTH)],
            name="projection_head",
        )
        self.linear_probe = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(CLASSES)], name="linear_probe")

    def compile(self, contrastive_optimizer, probe_optimizer, **kwargs):
        super().compile(**kwargs)
        self.contrastive_optimizer = contrastive_optimizer
        self.probe_optimizer = probe_optimizer
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrastive_loss_tracker = keras.metrics.Mean(name="c_loss")
        self.contrastive_accuracy = keras.metrics.SparseCategoricalAccuracy(name="c_acc")
        self.probe_loss_tracker = keras.metrics.Mean(name="p_loss")
        self.probe_accuracy = keras.metrics.SparseCategoricalAccuracy(name="p_acc")

    @property
    def metrics(self):
        trackers = [self.contrastive_loss_tracker, self.contrastive_accuracy]
        return [*trackers, self.probe_loss_tracker, self.probe_accuracy]

    def contrastive_loss(self, projections_1, projections_2):
        projections_1 = ops.normalize(projections_1, axis=1)
        projections_2 = ops.normalize(projections_2, axis=1)
        similarities = ops.matmul(projections_1, ops.transpose(projections_2)) / self.temperature
        batch_size = ops.shape(projections_1)[0]
        contrastive_labels = ops.arange(batch_size)
        self.contrastive_accuracy.update_state(contrastive_labels, similarities)
        self.contrastive_accuracy.update_state(contrastive_labels, ops.transpose(similarities))
        loss_1_2 = keras.losses.sparse_categorical_crossentropy(contrastive_labels, similarities, from_logits=True)
        loss_2_1 = keras.losses.sparse_categorical_crossentropy(
            contrastive_labels, ops.transpose(similarities), from_logits=True
        )
        return ops.mean(loss_1_2 + loss_2_1) / 2

    def train_step(self, data):
        first, second, for_probe, labels = data
        with tf.GradientTape() as tape:
            projections_1 = self.projection_head(self.encoder(first, training=True), training=True)
            projections_2 = self.projection_head(self.encoder(second, training=True), training=True)
            contrastive_loss = self.contrastive_loss(projections_1, projections_2)
        weights = self.encoder.trainable_weights + self.projection_head.trainable_weights
        self.contrastive_optimizer.apply_gradients(zip(tape.gradient(contrastive_loss, weights), weights, strict=True))
        self.contrastive_loss_tracker.update_state(contrastive_loss)

        with tf.GradientTape() as tape:
            # The encoder is only evaluated here.
            class_logits = self.linear_probe(self.encoder(for_probe, training=False), training=True)
            probe_loss = self.probe_loss(labels, class_logits)
        weights = self.linear_probe.trainable_weights
        self.probe_optimizer.apply_gradients(zip(tape.gradient(probe_loss, weights), weights, strict=True))
        self.probe_loss_tracker.update_state(probe_loss)
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics}

    def test_step(self, data):
        images, labels = data
        class_logits = self.linear_probe(self.encoder(images, training=False), training=False)
        self.probe_loss_tracker.update_state(self.probe_loss(labels, class_logits))
        self.probe_accuracy.update_state(labels, class_logits)
        return {m.name: m.result() for m in self.metrics[2:]}


rng = np.random.default_rng(0)
labels = np.arange(75) % CLASSES
images = rng.uniform(size=(CLASSES, SIZE, SIZE, 3))[labels] + rng.normal(0, 0.1, (75, SIZE, SIZE, 3))
examples = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
train_dataset = tf.data.Dataset.zip((tf.data.Dataset.range(75), examples)).map(views).batch(20)
test_dataset = examples.batch(30)
model = ContrastiveModel()
model.compile(
    contrastive_optimizer=keras.optimizers.Adam(0.003, epsilon=1e-3),
    probe_optimizer=keras.optimizers.Adam(0.003, epsilon=1e-3),
)
history = model.fit(train_dataset, epochs=3, validation_data=test_dataset, verbose=0)
