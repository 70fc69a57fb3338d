"""The GPUs that TensorFlow finds on this host, and what it was built with for them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import gpu_facts, host_gpus, unused_gpus


class GpusNotFoundError(ValueError):
    """This host has GPUs, but TensorFlow lists none; the message has the reason."""


def num_listed(env: Mapping[str, str]) -> int:
    """Returns how many GPUs TensorFlow lists.

    Raises:
        GpusNotFoundError: none, but this host has GPUs.
    """
    number = len(tf.config.list_physical_devices("GPU"))
    if not number:
        check_found(env)
    return number


def check_found(env: Mapping[str, str], proc: Path = Path("/proc")) -> None:
    """Raises GpusNotFoundError, with the reason and what to install, if this host has GPUs; TensorFlow lists none."""
    found = host_gpus.unused_by_tensorflow(env, proc)
    if found:
        raise GpusNotFoundError(unused_gpus.explain(found, env, proc))


def is_deterministic(env: Mapping[str, str]) -> bool:
    """Returns whether the environment makes TensorFlow use kernels that add in a fixed order."""
    return env.get("TF_DETERMINISTIC_OPS") in ("1", "true")


def describe(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns what results and speed on this worker's GPUs depend on, as JSON values; {} without GPUs."""
    devices = tf.config.get_visible_devices("GPU")
    if not devices:
        return {}
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    return gpu_facts.facts(details, tf.sysconfig.get_build_info(), env)


def notes(found: Mapping[str, Any]) -> list[str]:
    """Returns warnings about the result of `describe`: GPUs for which TensorFlow contains no machine code."""
    return gpu_facts.notes(found) if found else []
