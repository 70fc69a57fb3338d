"""AutoGraph for users' functions only.

AutoGraph converts Python's `if`, `for` and `while` over tensors to operations. tfdist's own functions do not use them
and are traced with `tf.function(autograph=False)`: converting them would take longer than tracing, at every start.
"""

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

_OWN = __name__.partition(".")[0]


def convert(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` with AutoGraph enabled for it and all that it calls; functions of tfdist are unchanged."""
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if str(getattr(plain, "__module__", "")).partition(".")[0] == _OWN:
        return function
    return api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))
