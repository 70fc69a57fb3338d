import os

import keras
import numpy as np
from recording import record


class Monitor(keras.callbacks.Callback):
    """Keeps pictures of what an autoencoder makes of fixed noise."""

    def __init__(self, num_img=3, latent=4):
        super().__init__()
        self.num_img = num_img
        self.seed_generator = keras.random.SeedGenerator(42)
        self.noise = keras.random.normal((num_img, latent), seed=1)
        self.means = []

    def on_epoch_end(self, epoch, logs=None):
        generated = self.model.decoder(self.noise) * 255
        generated = np.clip(generated.numpy(), 0, 255)
        self.means.append(generated.mean())
        for i in range(self.num_img):
            img = keras.utils.array_to_img(generated[i])
            img.save("images/generated_img_%03d_%d.png" % (epoch, i))


class AutoEncoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(4)])
        self.decoder = keras.Sequential([keras.layers.Dense(64, "sigmoid"), keras.layers.Reshape((8, 8, 1))])

    def call(self, x):
        return self.decoder(self.encoder(x))


keras.utils.set_random_seed(0)
os.mkdir("images")
x = np.random.rand(30, 8, 8, 1).astype("float32")
model = AutoEncoder()
model.compile("adam", "mse")
monitor = Monitor()
model.fit(x, x, epochs=3, batch_size=10, shuffle=False, callbacks=[monitor])
back = [
    keras.utils.img_to_array(keras.utils.load_img(f"images/{name}", color_mode="grayscale")).mean()
    for name in sorted(os.listdir("images"))
]
record(means=monitor.means, back=back)
