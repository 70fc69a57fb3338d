"""What results depend on besides config and data: versions, settings and the user's code."""

import json
import platform
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from tfdist.cluster.cluster import Cluster
from tfdist.config import user_code

_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TF_DETERMINISTIC_OPS", "XLA_FLAGS")


def settings(env: Mapping[str, str]) -> dict[str, str]:
    """Returns versions, Keras' settings and environment variables that change results, by name; "": not set."""
    found = {
        **{"Python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__},
        "numpy": np.__version__,
        **{name: str(getattr(keras.config, name)()) for name in ("floatx", "image_data_format", "epsilon")},
    }
    for name in _VARIABLES:  # Paths, of libraries and dumps, may differ between hosts.
        found[name] = " ".join(sorted(word for word in env.get(name, "").split() if "/" not in word))
    return found


def check_code(cluster: Cluster) -> None:
    """Raises ValueError if a user file differs between this worker and the chief. Collective.

    Compares files that both have imported. The rendezvous has compared those that were imported before it.
    """
    if cluster.num_workers > 1:
        here = user_code.hashes()
        there = json.loads(cluster.broadcast_bytes(json.dumps(here).encode()))
        if changed := differing(there, here):
            raise ValueError(
                f"Worker {cluster.rank} has other code than worker 0: {', '.join(changed)}. Give all workers the same "
                "files, and start them again."
            )


def differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns the names whose values differ; a name that `old` or `new` lacks is left out."""
    return [name for name, value in new.items() if old.get(name, value) != value]
