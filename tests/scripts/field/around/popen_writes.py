import pathlib
import subprocess
import sys

import keras
import numpy as np
from recording import record

code = "import pathlib,sys; f = open('calls.txt', 'a'); f.write('made\\n'); f.close(); print('rows 30')"
process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
rows = None
for line in process.stdout:
    if line.startswith("rows"):
        rows = int(line.split()[1])
process.wait()
calls = pathlib.Path("calls.txt").read_text().splitlines()
keras.utils.set_random_seed(0)
x = np.random.rand(rows, 3).astype("float32")
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
loss = model.fit(x, x.sum(1), epochs=2, batch_size=6, shuffle=False).history["loss"]
record(loss=loss, calls=len(calls), code=process.returncode, poll=process.poll())
