import keras
import numpy as np
from recording import record

# told: no effect until the next model.compile
x = np.random.RandomState(0).rand(40, 4).astype("float32")
y = x.sum(1, keepdims=True)
optimizer, dropout = keras.optimizers.SGD(0.1, momentum=0.9), keras.layers.Dropout(0.0)
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), dropout, keras.layers.Dense(1)])
model.layers[0].trainable = False
model.compile(optimizer, "mse")
fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
histories = [model.fit(x, y, **fit).history]
optimizer.momentum, dropout.rate, model.layers[0].trainable = 0.0, 0.5, True
histories.append(model.fit(x, y, **fit).history)
trained = model.get_weights()
dropout.rate = 0.0
model.compile(keras.optimizers.SGD(0.1, momentum=optimizer.momentum), "mse")
histories.append(model.fit(x, y, **fit).history)
record(histories=histories, weights=[trained, model.get_weights()], settings=[optimizer.momentum, dropout.rate])

SCALE = 1.0


class Settings:
    scale = 1.0


class Scaled(keras.Model):
    """Reads a NumPy number, elements of a list and of a dict, an object of the script, a global and a class."""

    of_class = 1.0

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.number, self.listed, self.named, self.settings = np.float32(1.0), [1.0], {"scale": 1.0}, Settings()

    def call(self, x):
        scale = SCALE * self.number * self.listed[0] * self.named["scale"] * self.settings.scale * self.of_class
        return self.dense(x) * scale


def change(model, value):
    global SCALE
    model.number, model.listed[0], model.named["scale"], model.settings.scale = np.float32(value), value, value, value
    SCALE = model.of_class = value


scaled, loss, found = Scaled(), keras.losses.Huber(delta=1.0), []
scaled.compile(keras.optimizers.SGD(0.01), loss, metrics=["mae"])


def call_all():
    options = {"batch_size": 20, "verbose": 0}
    found.append(scaled.evaluate(x, y, **options))
    found.append(scaled.predict(x, **options))
    found.append(scaled.fit(x, y, validation_data=(x, y), shuffle=False, **options).history)


call_all()
change(scaled, 1.5)
loss._fn_kwargs["delta"] = 0.1
call_all()
record(found=found, weights=scaled.get_weights())

# `adapt` makes new constants of a layer that is traced.
normalization = keras.layers.Normalization()
normalization.adapt(x)
model = keras.Sequential([keras.Input((4,)), normalization, keras.layers.Dense(1)])
model.compile("sgd", "mse")
histories = [model.fit(x, y, **fit).history]
normalization.adapt(2 * x + 1)
histories.append(model.fit(x, y, **fit).history)
record(histories=histories, weights=model.get_weights())

# A layer that is frozen within one that is not, and a class attribute, as an evaluation finds them.
keras.utils.set_random_seed(1)
base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(3)])
model = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(1)])
base.trainable = False
model.compile("sgd", "mse")
model.fit(x, y, validation_data=(x, y), **fit)
base.trainable, base.layers[0].trainable = True, False
model.evaluate(x, y, verbose=0)
model.compile("sgd", "mse")
model.fit(x, y, **fit)
scaled = Scaled()
scaled.compile(keras.optimizers.SGD(0.01), "mse")
for Scaled.of_class in (1.0, 2.0):
    scaled.fit(x, y, **fit)
Scaled.of_class = 3.0
scaled.compile(keras.optimizers.SGD(0.01), "mse")
scaled.fit(x, y, **fit)
record(weights=[model.get_weights(), scaled.get_weights()], of_class=scaled.of_class)
