"""tfdist trains any Keras model data-parallel with one command, the same run on any machines."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Lazily: `import tfdist.config` must not import TensorFlow.
    if name == "connect":
        from tfdist.keras_fit.connect import connect

        return connect
    if name in ("evaluate", "fit", "predict"):
        from tfdist.keras_fit import api

        return getattr(api, name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
