"""`Divided`: a variable that is split between the replicas; a checkpoint holds the whole."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class Divided:
    """Stands for the whole among the variables of a run: its shape, its dtype, and how it is read and assigned."""

    shape: tf.TensorShape
    dtype: tf.DType

    def local(self) -> Sequence[tf.Variable]:
        """Returns the parts of this worker's replicas."""
        raise NotImplementedError

    def whole(self) -> np.ndarray:
        """Returns the values of all parts, of `shape` and `dtype`, on every worker. Collective."""
        raise NotImplementedError

    def assign(self, values: Any) -> None:
        """Assigns to this worker's parts what they hold of `values`, of `shape` and `dtype`; no communication."""
        raise NotImplementedError


def local_variables(strategy: Any, variable: Any) -> Sequence[tf.Variable]:
    """Returns this worker's copies of a TensorFlow variable, or its parts of a divided one."""
    return variable.local() if isinstance(variable, Divided) else strategy.experimental_local_results(variable)
