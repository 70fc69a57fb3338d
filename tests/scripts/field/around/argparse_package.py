import argparse
import os
import sys

import keras
import numpy as np
from recording import record

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--out", default="out")
args = parser.parse_args()
os.makedirs("helpers", exist_ok=True)
with open("helpers/__init__.py", "w") as file:
    file.write("def scale(x):\n    return x * 0.5\n")
sys.path.insert(0, os.getcwd())
from helpers import scale  # noqa: E402


def main():
    keras.utils.set_random_seed(0)
    x = scale(np.random.rand(40, 4).astype("float32"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, 0], epochs=args.epochs, batch_size=8, shuffle=False)
    os.makedirs(args.out, exist_ok=True)
    model.save(os.path.join(args.out, "model.keras"))
    record(weights=model.get_weights(), files=sorted(os.listdir(args.out)))


if __name__ == "__main__":
    main()
