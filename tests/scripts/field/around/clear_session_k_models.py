import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(9)
x, y = np.random.rand(24, 3).astype("float32"), np.random.rand(24, 1).astype("float32")
scores, best, averaged = [], None, None
for units in (2, 4):
    keras.backend.clear_session()
    keras.utils.set_random_seed(units)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(x, y, epochs=2, batch_size=6, shuffle=False, verbose=0)
    scores.append(model.evaluate(x, y, verbose=0))
    clone = keras.models.clone_model(model)
    clone.set_weights([0.5 * value for value in model.get_weights()])
    averaged = clone.predict(x[:4], verbose=0)
    if scores[-1] == min(scores):
        best = model.get_weights()
record(scores=scores, best=best, averaged=averaged)
