"""Importing tfdist changes nothing in Keras or the interpreter: `fit` replaces methods, and restores them."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
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
@pytest.mark.workers
def test_importing_patches_nothing():
    result = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30
