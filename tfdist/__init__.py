"""Data-parallel training of any Keras model: the same run on any number of devices and machines.

From the command line, with a config:

    python -m tfdist.main --config=configs/digits.py

In a script with a compiled Keras model (docs/scripts.md):

    cluster = tfdist.connect()
    with cluster.scope():
        model = build_model()
        model.compile(optimizer="adam", loss="mse")
    tfdist.fit(cluster, model, x, y, epochs=10)
"""

import os
import sys
import types
from collections.abc import Callable
from typing import Any

from tfdist import report  # First: it notes the time.
from tfdist.config import patching, tensorflow_log

# Imported on first use: `import tfdist.config` must not import TensorFlow.
__all__ = ["batches", "connect", "evaluate", "fit", "predict", "step"]


def __getattr__(name: str) -> Any:
    if name == "connect":
        from tfdist.keras_fit import connect as module
    elif name in ("fit", "evaluate", "predict"):
        from tfdist.keras_fit import api as module
    elif name in ("batches", "step"):
        from tfdist.keras_fit.own_step import own_loop as module
    else:
        raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _import_tensorflow(execute: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    from tfdist.cluster.devices import onednn

    tensorflow_log.hide(os.environ)
    with onednn.apply_choice(os.environ):
        execute(module)


if "tensorflow" not in sys.modules:
    sys.meta_path.insert(0, patching.ImportHook({"tensorflow"}, _import_tensorflow))
os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it when imported; it overrides keras.json.
