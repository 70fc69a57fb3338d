import json
import pathlib
import pickle

import keras
import numpy as np
from recording import record

keras.utils.set_random_seed(0)
x = np.random.rand(40, 4).astype("float32")
folder = pathlib.Path("artifacts")
folder.mkdir(parents=True, exist_ok=True)
scaler = {"mean": x.mean(0), "std": x.std(0)}
with (folder / "scaler.pkl").open("wb") as file:
    pickle.dump(scaler, file)
(folder / "config.json").write_text(json.dumps({"units": 3}))
config = json.loads((folder / "config.json").read_text())
with (folder / "scaler.pkl").open("rb") as file:
    scaler = pickle.load(file)
x = (x - scaler["mean"]) / scaler["std"]
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(config["units"]), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x[:, 0], epochs=2, batch_size=8, shuffle=False)
for path in folder.iterdir():
    path.unlink()
folder.rmdir()
record(weights=model.get_weights(), gone=not folder.exists())
