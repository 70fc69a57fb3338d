"""Magnitude pruning: after each epoch small weights become zero, and stay so."""

import keras
import numpy as np
from recording import record


class Pruner(keras.callbacks.Callback):
    def __init__(self, final=0.5, epochs=4):
        super().__init__()
        self.final, self.epochs = final, epochs
        self.masks, self.sparsity = {}, []

    def apply(self):
        for layer in self.model.layers:
            if layer.name in self.masks:
                kernel, *rest = layer.get_weights()
                layer.set_weights([kernel * self.masks[layer.name], *rest])

    def on_train_batch_end(self, batch, logs=None):
        self.apply()

    def on_epoch_end(self, epoch, logs=None):
        amount = self.final * min(1.0, (epoch + 1) / self.epochs)
        for layer in self.model.layers:
            if isinstance(layer, keras.layers.Dense):
                kernel = layer.get_weights()[0]
                limit = np.quantile(np.abs(kernel), amount)
                self.masks[layer.name] = (np.abs(kernel) > limit).astype(kernel.dtype)
        self.apply()
        zeros = sum(float((layer.get_weights()[0] == 0).sum()) for layer in self.model.layers)
        self.sparsity.append(zeros / sum(layer.get_weights()[0].size for layer in self.model.layers))


keras.utils.set_random_seed(4)
x = np.random.randn(48, 6).astype("float32")
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(10, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
pruner = Pruner()
history = model.fit(x, x[:, :1] ** 2, epochs=4, batch_size=16, shuffle=False, verbose=0, callbacks=[pruner])
record(sparsity=pruner.sparsity, weights=model.get_weights(), loss=history.history["loss"])
