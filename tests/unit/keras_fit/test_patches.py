"""Importing tfdist changes nothing in Keras or the interpreter: `fit` replaces methods, and restores them."""

import subprocess

import pytest
from launching import python

PROGRAM = """
import importlib, pkgutil, sys
import keras
from keras.src.losses import loss

def state():
    owners = [loss, keras.Model, keras.Layer, keras.Metric, keras.Loss, keras.optimizers.Optimizer,
              keras.optimizers.LossScaleOptimizer, keras.random.SeedGenerator]
    return [dict(vars(owner)) for owner in owners] + [sys.excepthook]

before = state()
import tfdist
for name in ("keras_fit", "training"):
    package = importlib.import_module(f"tfdist.{name}")
    for module in pkgutil.walk_packages(package.__path__, f"tfdist.{name}."):
        importlib.import_module(module.name)
assert state() == before
assert callable(tfdist.fit) and callable(tfdist.connect)
print(sum(name.startswith("tfdist.") for name in sys.modules))
"""


@pytest.mark.slow
def test_importing_patches_nothing():
    assert int(python("-c", PROGRAM, start=subprocess.run).stdout) > 30
