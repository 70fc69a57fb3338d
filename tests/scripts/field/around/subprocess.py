import subprocess
import sys

import keras
import numpy as np
from recording import record

code = "import numpy; numpy.save('made.npy', numpy.arange(40.0).reshape(10, 4))"
subprocess.run([sys.executable, "-c", code], check=True)
version = subprocess.check_output([sys.executable, "-c", "print('v1')"], text=True).strip()
x = np.load("made.npy").astype("float32") / 40
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, 0], epochs=2, batch_size=4, shuffle=False)
record(loss=history.history["loss"], version=version)
