import os
import shutil
import zipfile

import keras
import numpy as np
from recording import record

os.makedirs("raw", exist_ok=True)
for number in range(3):
    np.save(f"raw/{number}.npy", np.full((8, 2), number, "float32"))
shutil.make_archive("data", "zip", "raw")
shutil.rmtree("raw")
with zipfile.ZipFile("data.zip") as archive:
    archive.extractall("out")
shutil.copytree("out", "copy")
shutil.move("copy/0.npy", "copy/zero.npy")
x = np.concatenate([np.load(os.path.join("out", name)) for name in sorted(os.listdir("out"))])
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(x, x[:, :1], epochs=2, batch_size=6, shuffle=False)
record(history=history.history, names=sorted(os.listdir("copy")))
