"""Runs examples one after another, each as `python EXAMPLE.py` does, and writes down what came of them.

usage: python tests/scripts/examples/run_each.py OUT NAME...
"""

import json
import pathlib
import runpy
import sys

import keras
import numpy as np
import tensorflow as tf

FOLDER = pathlib.Path(__file__).parent


def main(out: pathlib.Path, *names: str) -> None:
    # Graph optimizers take longer than these small trainings.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    for name in names:
        keras.utils.clear_session()
        script = runpy.run_path(f"{FOLDER / name}.py", run_name="__main__")
        with open(out / f"{name}.json", "w") as file:
            json.dump(script["history"].history, file)
        np.savez(out / f"{name}.npz", *script["model"].get_weights())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:])
