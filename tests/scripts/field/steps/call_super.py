import keras
import numpy as np
from recording import record


class Logged(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        logs["rate"] = self.optimizer.learning_rate
        return logs

    def test_step(self, data):
        logs = super().test_step(data)
        logs["twice"] = 2.0 * logs["loss"]
        return logs


keras.utils.set_random_seed(0)
x, y = np.random.rand(40, 4).astype("float32"), np.random.rand(40, 1).astype("float32")
inputs = keras.Input((4,))
model = Logged(inputs, keras.layers.Dense(1)(inputs))
model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse", metrics=["mae"])
history = model.fit(x, y, validation_data=(x, y), epochs=2, batch_size=10, shuffle=False)
record(weights=model.get_weights(), loss=history.history["loss"], val=history.history["val_loss"])
