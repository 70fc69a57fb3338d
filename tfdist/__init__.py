"""tfdist trains any Keras model data-parallel with one command, the same run on any machines."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Lazily: `import tfdist.config` must not import TensorFlow.
    if name == "connect":
        from tfdist.cluster.strategy import connect

        return connect
    raise AttributeError(f"module 'tfdist' has no attribute {name!r}")
