import keras
import numpy as np
from recording import record

names = ["MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredLogarithmicError"]
names += ["Huber", "LogCosh", "CosineSimilarity", "Poisson"]
rng = np.random.default_rng(0)
x, y = rng.random((22, 4)).astype("float32"), rng.random((22, 3)).astype("float32") + 0.1
found = {}
for name in names:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softplus")])
    model.compile(keras.optimizers.SGD(0.01), getattr(keras.losses, name)())
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0)
    found[name] = [history.history["loss"], model.get_weights()]
record(**found)
