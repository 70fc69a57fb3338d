"""One seed for all workers of a script: unseeded draws of Python, NumPy, TensorFlow and Keras are the same on each.

The seed is new in each start, or saved in the workdir, so that a resumed script draws the same numbers. Draws with a
seed are unchanged. `uuid`, `secrets`, `os.urandom`, `random.Random()` and the clocks differ between workers.
"""

import contextlib
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.random import bit_generator

from tfdist.cluster.cluster import Cluster
from tfdist.config.patching import patch
from tfdist.keras_fit.script import script_state
from tfdist.report import files

_BITS = 62
# The module whose `get_seed` TensorFlow's operations call.
_SEEDS = sys.modules[tf.compat.v1.random.get_seed.__module__]


@contextlib.contextmanager
def share_seed(cluster: Cluster, workdir: Path | None) -> Iterator[int]:
    """Gives all workers one seed in the block, and yields it. Collective. It is saved in `workdir`; None: it is new."""
    seed = cluster.broadcast(_read_or_draw(workdir) if cluster.is_chief else 0)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    tf.random.set_global_generator(tf.random.Generator.from_seed(seed))

    def draw(bits: int) -> int:
        return script_state.generator().getrandbits(bits)

    def operation_seeds(original: Callable[[Any], tuple[Any, Any]], op_seed: Any) -> tuple[Any, Any]:
        try:
            seeds = original(op_seed)
        except RuntimeError:  # enable_op_determinism requires a seed, which is drawn below.
            seeds = (None, None)
        return seeds if seeds != (None, None) else (draw(30) + 1, draw(30) + 1)

    # NumPy calls `randbits` for each generator without a seed.
    with (
        patch(bit_generator, "randbits", lambda original, bits: draw(bits)),
        patch(_SEEDS, "get_seed", operation_seeds),
    ):
        yield seed


def _read_or_draw(workdir: Path | None) -> int:
    drawn = secrets.randbits(_BITS)
    if workdir is None:
        return drawn
    path = workdir / "entropy"
    files.make_workdir(workdir)
    advice = "restore it, or remove it: the script then draws other random numbers than before."
    content = files.read_file(path, advice)
    if content is None:
        files.replace_file(path, f"{drawn:x}".encode())
        return drawn
    try:
        return int(content, 16) % 2**_BITS
    except ValueError:
        raise ValueError(f"{path} is damaged: {advice}") from None
