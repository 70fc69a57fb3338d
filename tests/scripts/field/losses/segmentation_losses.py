import keras
import numpy as np
from recording import record

rng = np.random.default_rng(0)
x = rng.random((18, 8, 8, 1)).astype("float32")
y = (x > 0.5).astype("float32")
found = {}
for name in ("Dice", "Tversky"):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")])
    metrics = [keras.metrics.BinaryIoU(), keras.metrics.MeanIoU(2, sparse_y_pred=True)]
    model.compile("adam", getattr(keras.losses, name)(), metrics=metrics[:1])
    history = model.fit(x, y, epochs=2, batch_size=5, shuffle=False, verbose=0)
    found[name] = [history.history, model.get_weights()]
record(**found)
