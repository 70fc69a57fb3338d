"""Finds a variable that is not finite, before a checkpoint would hold it."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.checkpoint import format as checkpoint_format
from tfdist.cluster.cluster import Cluster


def make_finite_check(cluster: Cluster, variables: Mapping[str, Any]) -> Callable[[], str]:
    """Returns a function that says, equal on all workers, which variable is not finite; "": all are. Collective.

    Args:
        variables: by name.
    """
    check = check_worker(variables)

    def check_all() -> str:
        name = check()
        if not cluster.any_worker(bool(name)):
            return ""
        return f"The variable {next(filter(None, cluster.all_gather_text(name)))} is not finite"

    return check_all


def check_worker(variables: Mapping[str, Any]) -> Callable[[], str]:
    """Compiles a function that returns the name of a variable that is not finite on this worker; "": there is none.

    A variable that is infinite now, such as a mask with -inf, may stay so: only NaN counts there.
    """
    values = {name: checkpoint_format.tf_variable(variable) for name, variable in variables.items()}
    floats = {name: value for name, value in values.items() if value.dtype.is_floating}
    infinite = {name for name, value in floats.items() if tf.reduce_any(tf.math.is_inf(value))}

    @tf.function(autograph=False)
    def check() -> tf.Tensor:
        bad = [tf.math.is_nan(v) if name in infinite else ~tf.math.is_finite(v) for name, v in floats.items()]
        return tf.stack([tf.reduce_any(one) for one in bad])

    # Traced once, at its first call. TensorFlow would warn about the calls of `check` in a script with many fits.
    traced = functools.cache(check.get_concrete_function)
    return lambda: next((name for name, bad in zip(floats, traced()().numpy(), strict=True) if bad), "")
