import keras
import numpy as np
from recording import record

rng = np.random.default_rng(0)
x, y = rng.random((21, 3)).astype("float32"), rng.random((21, 2)).astype("float32")
found = {}
for reduction in ("sum", "sum_over_batch_size", "mean", "mean_with_sample_weight"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError(reduction=reduction))
    weights = np.linspace(0.2, 1.8, 21)
    history = model.fit(x, y, sample_weight=weights, epochs=2, batch_size=8, shuffle=False, verbose=0)
    found[reduction] = [history.history["loss"], model.get_weights()]
record(**found)
