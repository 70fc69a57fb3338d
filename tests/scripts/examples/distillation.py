"""A student learns from a teacher, after https://keras.io/examples/vision/knowledge_distillation."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1)


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(self, optimizer, metrics, student_loss_fn, distillation_loss_fn, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            ops.softmax(teacher_pred / self.temperature, axis=1),
            ops.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x):
        return self.student(x)


def network(filters, name):
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.Conv2D(filters, (3, 3), strides=(2, 2), padding="same"),
            layers.LeakyReLU(negative_slope=0.2),
            layers.MaxPooling2D(pool_size=(2, 2), strides=(1, 1), padding="same"),
            layers.Conv2D(2 * filters, (3, 3), strides=(2, 2), padding="same"),
            layers.Flatten(),
            layers.Dense(5),
        ],
        name=name,
    )


rng = np.random.default_rng(0)
y_train = np.arange(150) % 5
x_train = (rng.uniform(size=(5, 12, 12, 1))[y_train] + rng.normal(0, 0.2, (150, 12, 12, 1))).astype("float32")

teacher = network(8, "teacher")
teacher.compile(
    optimizer=keras.optimizers.SGD(0.05),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
teacher.fit(x_train, y_train, epochs=2, batch_size=30, shuffle=False, verbose=0)
teacher_accuracy = teacher.evaluate(x_train, y_train, verbose=0)[1]

model = Distiller(student=network(4, "student"), teacher=teacher)
model.compile(
    optimizer=keras.optimizers.SGD(0.05),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
    student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    distillation_loss_fn=keras.losses.KLDivergence(),
    alpha=0.1,
    temperature=10,
)
history = model.fit(x_train, y_train, epochs=3, batch_size=40, shuffle=False, verbose=0)
model.evaluate(x_train, y_train, verbose=0)
