import keras
import numpy as np
from recording import record


class Distiller(keras.Model):
    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(self, optimizer, metrics, student_loss, distillation_loss, alpha=0.1, temperature=3):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss
        self.alpha, self.temperature = alpha, temperature

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False):
        teacher = self.teacher(x, training=False)
        student_loss = self.student_loss(y, y_pred)
        soft = self.distillation_loss(
            keras.ops.softmax(teacher / self.temperature, axis=1), keras.ops.softmax(y_pred / self.temperature, axis=1)
        )
        return self.alpha * student_loss + (1 - self.alpha) * soft * self.temperature**2

    def call(self, x):
        return self.student(x)


keras.utils.set_random_seed(0)
x, y = np.random.rand(30, 5).astype("float32"), np.random.randint(0, 3, 30)
teacher = keras.Sequential([keras.Input((5,)), keras.layers.Dense(12, "relu"), keras.layers.Dense(3)])
student = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
model = Distiller(student, teacher)
model.compile(
    keras.optimizers.Adam(),
    [keras.metrics.SparseCategoricalAccuracy()],
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    keras.losses.KLDivergence(),
)
history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False)
record(history=history.history, weights=student.get_weights())
