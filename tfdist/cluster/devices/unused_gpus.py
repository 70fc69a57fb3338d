"""Why TensorFlow lists no GPU on a host that has some: CUDA build and libraries, driver, another maker."""

import importlib.metadata
import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.devices import host_gpus, machine

_INSTALL = f"{sys.executable} -m pip install 'tensorflow[and-cuda]>=2.21,<2.23'"


def explain(found: str) -> str:
    """Returns the message about GPUs that `host_gpus.unused_by_tensorflow` `found`: the reason, and what to install."""
    import tensorflow as tf  # `tfdist doctor` reads the rest without.

    reason = why_unused(tf.sysconfig.get_build_info(), missing_libraries(), host_gpus.driver_version())
    return (
        f"This host has {found}, but TensorFlow {tf.__version__} lists none: {reason} To train on the CPU, set "
        "--config.cluster.gpus=0."
    )


def why_unused(build: Mapping[str, Any], missing: Sequence[str], driver: str) -> str:
    """Returns the probable reason why TensorFlow lists no GPU, and what to do.

    Args:
        missing: the result of `missing_libraries`.
        driver: version of the NVIDIA driver; "": unknown.
    """
    if not build.get("is_cuda_build"):
        return f"it was built without CUDA. {advice('nvidia', platform.machine())}"
    cuda = f"CUDA {build.get('cuda_version')} and cuDNN {build.get('cudnn_version')}"
    container = "In a container, also pass the GPUs: apptainer exec --nv, docker run --gpus=all."
    if missing:
        return (
            f"CUDA's libraries are missing ({', '.join(missing)}). Run: {_INSTALL} (or load the site's modules of "
            f"{cuda} before Python starts). {container}"
        )
    return (
        f"a library cannot be loaded, CUDA_VISIBLE_DEVICES names no GPU of this host, or the driver "
        f"({driver or 'unknown version'}) is too old for {cuda}. To see which: TF_CPP_MIN_LOG_LEVEL=0 "
        f"{sys.executable} -c 'import tensorflow as tf; print(tf.config.list_physical_devices(\"GPU\"))'. {container}"
    )


def missing_libraries() -> list[str]:
    """Returns the packages of the extra `tensorflow[and-cuda]` that are not installed."""
    try:
        required = importlib.metadata.requires("tensorflow") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    names = [re.split(r"[^\w.-]", line)[0] for line in required if "and-cuda" in line]
    return [name for name in names if not machine.version(name)]


def advice(maker: str, architecture: str = "") -> str:
    """Returns what to do about GPUs of `maker`, "nvidia", "amd" or "intel", for which TensorFlow was not built."""
    known = json.loads(Path(__file__).with_name("machines.json").read_text())
    kind = f"nvidia {architecture}" if maker == "nvidia" else maker
    return known.get(kind, known["nvidia x86_64"]).format(install=_INSTALL)


def of_other_makers(here: machine.Machine) -> str:
    """Returns a note about GPUs of AMD and Intel, which TensorFlow's wheels do not use; "" without such GPUs."""
    return " ".join(
        f"This machine has {number} GPU(s) of {maker.upper()}, and the replicas run on the CPU. {advice(maker)}"
        for maker, number in here.gpus.items()
        if maker != "nvidia"
    )
