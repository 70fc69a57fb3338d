"""Random numbers of layers differ between the replicas of a script, whatever a callback or a prediction does."""

import json
import subprocess

from launching import python

SCRIPT = """import json, keras, numpy as np, tensorflow as tf

x, y = np.ones((32, 64), "float32"), np.ones((32, 1), "float32")

class Draws(keras.Model):
    def __init__(self):
        super().__init__()
        self.drop, self.dense = keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.dense(self.drop(x, training=training))

    def train_step(self, data):
        mask = self.drop(tf.ones([32, 64]), training=True)
        return super().train_step(data) | {"same": tf.reduce_mean(tf.cast(mask[:16] == mask[16:], tf.float32))}

class Before(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.evaluate(x, y, verbose=0)

class Always(keras.Model):
    def __init__(self):
        super().__init__()
        self.drop = keras.layers.Dropout(0.5, seed=3)

    def call(self, x, training=False):
        return self.drop(x, training=True)

model = Draws()
model.compile("sgd", "mse")
found = model.fit(x, y, batch_size=32, callbacks=[Before()], verbose=0).history["same"]
first, second = (always.predict(x, verbose=0) for always in [Always()] for _ in range(2))
print(json.dumps([*found, (first[:16] == first[16:]).mean(), (first == second).mean()]))
"""


def test_masks_differ_between_replicas_and_calls(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = python("-m", "tfdist.run", "--logical_devices=2", str(script), start=subprocess.run)
    assert all(0.4 < same < 0.6 for same in json.loads(done.stdout.splitlines()[-1])), done
