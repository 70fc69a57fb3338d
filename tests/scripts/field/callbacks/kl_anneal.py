import keras
import numpy as np
from keras import ops
from recording import record


class VAE(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.layers.Dense(4)
        self.decoder = keras.layers.Dense(6)
        self.beta = keras.Variable(0.0, trainable=False, name="beta")

    def call(self, x):
        mean, log_variance = ops.split(self.encoder(x), 2, axis=-1)
        self.add_loss(self.beta * -0.5 * ops.mean(1 + log_variance - mean**2 - ops.exp(log_variance)))
        return self.decoder(mean)


class Anneal(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.beta.assign(min(1.0, 0.4 * epoch))


keras.utils.set_random_seed(6)
x = np.random.rand(40, 6).astype("float32")
model = VAE()
model.compile("adam", "mse")
history = model.fit(x, x, epochs=4, batch_size=20, shuffle=False, callbacks=[Anneal()])
record(loss=history.history["loss"], beta=float(model.beta), weights=model.get_weights())
