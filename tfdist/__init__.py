"""tfdist trains any Keras model data-parallel with one command, the same run on any machines."""

from typing import Any

_FOR_SCRIPTS = ("connect", "evaluate", "fit", "predict")


def __getattr__(name: str) -> Any:
    # Lazily: `import tfdist.config` must not import TensorFlow.
    if name in _FOR_SCRIPTS:
        from tfdist.keras_fit import api

        return getattr(api, name)
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
