"""Trains any Keras model data-parallel, the same run on any machines.

From the command line, with a config:

    python -m tfdist.main --config=configs/digits.py

In a script with a compiled Keras model (docs/scripts.md):

    cluster = tfdist.connect()
    with cluster.scope():
        model = build_model()
        model.compile(optimizer="adam", loss="mse")
    tfdist.fit(cluster, model, x, y, epochs=10)
"""

import contextlib
import importlib
import os
import sys
from typing import Any

from tfdist.config import tensorflow_log

# Public functions -> their modules, imported on first use: `import tfdist.config` must not import TensorFlow.
_FUNCTIONS = {
    "connect": "tfdist.keras_fit.connect",
    "fit": "tfdist.keras_fit.api",
    "evaluate": "tfdist.keras_fit.api",
    "predict": "tfdist.keras_fit.api",
    "batches": "tfdist.keras_fit.own_step.own_loop",
    "step": "tfdist.keras_fit.own_step.own_loop",
    "all_gather": "tfdist.keras_fit.own_step.replica_step",
    "per_example": "tfdist.keras_fit.whole_batch.per_example",
}
__all__ = [*_FUNCTIONS]


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS})


importlib.import_module("tfdist.report.interpreter")  # It notes the time.
if sys.argv[:1] == ["-m"]:  # `python -m tfdist.NAME`: a module that is no command must not end with exit code 0.
    importlib.import_module("tfdist.config.command_line.words").check_module(sys.orig_argv)


def _onednn() -> contextlib.AbstractContextManager[None]:
    return importlib.import_module("tfdist.cluster.devices.onednn").apply_choice(os.environ)


tensorflow_log.hide_at_import(_onednn)
os.environ["KERAS_BACKEND"] = "tensorflow"  # Keras reads it at its import, before its file keras.json.
