"""How the examples are prepared, for the log."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def describe(prepare: Mapping[str, Any], spec: Mapping[str, tf.TensorSpec]) -> str:
    """Returns the prepare function of a config, its arguments, and the batches that it returns on one replica."""
    arguments = ", ".join(f"{name}={value!r}" for name, value in prepare.items() if name != "target")
    batch = ", ".join(f"{name} {one.dtype.name} {one.shape.as_list()}" for name, one in spec.items())
    return f"config.data.prepare: {prepare['target']}({arguments})  returns per replica {batch}"
