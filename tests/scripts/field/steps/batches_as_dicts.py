import keras
import numpy as np
import tensorflow as tf
from recording import record

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
values, conditions = rng.normal(size=(30, 3)).astype("float32"), rng.normal(size=(30, 2)).astype("float32")


class Simulations(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = slice(8 * index, 8 * index + 8)
        return {"values": values[rows], "conditions": conditions[rows]}


class Approximator(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def build(self, shapes):
        self.dense.build((None, 2))

    def call(self, inputs):
        return self.dense(inputs["conditions"])

    def compute_metrics(self, values, conditions, stage="training"):
        loss = keras.ops.mean(keras.ops.square(values - self.dense(conditions)))
        return {"loss": loss}

    def train_step(self, data):
        with tf.GradientTape() as tape:
            metrics = self.compute_metrics(**(data | {"stage": "training"}))
        grads = tape.gradient(metrics["loss"], self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return metrics

    def test_step(self, data):
        return self.compute_metrics(**data, stage="validation")

    def predict_step(self, data):
        return self.dense(data["conditions"])


model = Approximator()
model.compile(keras.optimizers.Adam(0.05))
history = model.fit(Simulations(), validation_data=Simulations(), epochs=3, shuffle=False, verbose=0)
evaluated = model.evaluate(Simulations(), verbose=0, return_dict=True)
record(h=history.history, w=model.get_weights(), e=evaluated, p=model.predict(Simulations(), verbose=0))
