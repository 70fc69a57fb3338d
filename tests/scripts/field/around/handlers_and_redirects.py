import atexit
import contextlib
import io
import json
import signal
import warnings

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(5)
x = np.random.rand(30, 4).astype("float32")
inputs = keras.Input((4,), name="features")
hidden = keras.layers.Dense(5, "tanh", name="hidden")(inputs)
model = keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden))
model.compile("sgd", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError()])
state = {"finished": False}
signal.signal(signal.SIGUSR2, lambda *_: state.update(asked=True))
atexit.register(lambda: open("end.json", "w").write(json.dumps(state)))
text = io.StringIO()
with contextlib.redirect_stdout(text), warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    history = model.fit(x, x[:, :2], epochs=2, batch_size=6, shuffle=False, verbose=2)
lines = []
model.summary(print_fn=lambda line, *_: lines.append(line))
features = keras.Model(model.input, model.get_layer("hidden").output).predict(x[:5], verbose=0)
state["finished"] = True
record(history=history.history, features=features, layers=len(lines) > 3, weights=model.get_weights())
