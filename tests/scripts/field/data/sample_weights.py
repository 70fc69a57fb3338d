import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x, y = np.random.rand(43, 4).astype("float32"), np.random.randint(0, 3, 43)
weights = np.random.rand(43).astype("float32")
found = {}
for how in ("none", "sample", "class"):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", weighted_metrics=["accuracy"], metrics=["accuracy"])
    more = {"sample": {"sample_weight": weights}, "class": {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}}}.get(how, {})
    history = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, **more)
    found[how] = [history.history, model.get_weights(), model.evaluate(x, y, sample_weight=weights)]
record(**found)
