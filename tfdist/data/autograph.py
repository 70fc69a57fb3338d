"""AutoGraph for what users write, and for nothing else.

Of a user's function, AutoGraph turns Python's `if`, `for` and `while` over tensors into operations. tfdist's own
functions are written without them, and compiled with `tf.function(autograph=False)`: to have them rewritten would take
longer than to trace them, at every start.
"""

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

_OWN = __name__.partition(".")[0]


def convert(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` as AutoGraph rewrites it when it is traced, with all that it calls; ours as they are."""
    plain = function
    while isinstance(plain, functools.partial):
        plain = plain.func
    if str(getattr(plain, "__module__", "")).partition(".")[0] == _OWN:
        return function
    return api.tf_convert(function, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))
