"""The GPUs that TensorFlow lists on this host, the CUDA software of its build, and what results on GPUs depend on."""

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import host_gpus, machine

# Environment variables that change how GPUs compute or communicate.
_VARIABLES = ("TF_DETERMINISTIC_OPS", "TF_FORCE_GPU_ALLOW_GROWTH", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "NCCL_")
_INSTALL = f"{sys.executable} -m pip install 'tensorflow[and-cuda]>=2.21,<2.23'"


class GpusNotFoundError(ValueError):
    """This host has GPUs, but TensorFlow lists none; the message has the reason."""


def num_listed(env: Mapping[str, str], proc: Path = Path("/proc")) -> int:
    """Returns how many GPUs TensorFlow lists.

    Raises:
        GpusNotFoundError: it lists none, but this host has GPUs; the message has the reason and what to install.
    """
    number = len(tf.config.list_physical_devices("GPU"))
    if not number and (found := host_gpus.unused_by_tensorflow(env, proc)):
        reason = why_unused(tf.sysconfig.get_build_info(), host_gpus.driver_version())
        raise GpusNotFoundError(
            f"This host has {found}, but TensorFlow {tf.__version__} lists none: {reason} To train on the CPU, set "
            "--config.cluster.gpus=0."
        )
    return number


def why_unused(build: Mapping[str, Any], driver: str) -> str:
    """Returns the probable reason why TensorFlow lists no GPU, and what to do; `driver`: its version, "": unknown."""
    if not build.get("is_cuda_build"):
        other = "docs/centres.md says which builds have it"  # No wheel of TensorFlow for this machine has CUDA.
        return f"it was built without CUDA: {_INSTALL if platform.machine() == 'x86_64' else other}."
    return (
        f"a library of CUDA {build.get('cuda_version')} or cuDNN {build.get('cudnn_version')} is missing ({_INSTALL} "
        "installs them, or load the site's modules), CUDA_VISIBLE_DEVICES names no GPU of this host, or the driver "
        f"({driver or 'unknown version'}) is too old. To see which: TF_CPP_MIN_LOG_LEVEL=0 "
        f"{sys.executable} -c 'import tensorflow as tf; print(tf.config.list_physical_devices(\"GPU\"))'. In a "
        "container, also pass the GPUs: apptainer exec --nv, docker run --gpus=all."
    )


def describe(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns what results and speed on this worker's GPUs depend on, as JSON values; {} without GPUs."""
    devices = tf.config.get_visible_devices("GPU")
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    return facts(details, tf.sysconfig.get_build_info(), env) if devices else {}


def facts(details: Sequence[Mapping[str, Any]], build: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Makes the result of `describe`; `details`: `device_name` and `compute_capability` of each GPU."""
    built = list(build.get("cuda_compute_capabilities", []))
    gpus = []
    for detail in details:
        capability = detail.get("compute_capability")
        gpus.append(
            {
                "name": detail.get("device_name", "unknown"),
                "compute_capability": capability and ".".join(map(str, capability)),
                "code": capability and generated_code(capability, built),
            }
        )
    return {
        "gpus": gpus,
        "driver": host_gpus.driver_version(),
        "built_for": built,
        "cuda": machine.version("nvidia-cuda-runtime-cu12") or f"{build.get('cuda_version')} (build)",
        "cudnn": machine.version("nvidia-cudnn-cu12") or f"{build.get('cudnn_version')} (build)",
        "nccl": machine.version("nvidia-nccl-cu12") or "unknown",
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled() and env.get("NVIDIA_TF32_OVERRIDE") != "0",
        "variables": {name: value for name, value in sorted(env.items()) if name.startswith(_VARIABLES)},
    }


def generated_code(compute_capability: Sequence[int], built: Sequence[str]) -> str:
    """Returns what this build of TensorFlow contains for a GPU: "binary", "PTX", or "" for nothing.

    Args:
        compute_capability: (major, minor).
        built: TensorFlow's `cuda_compute_capabilities`, such as ["sm_80", "compute_90"]. sm_XY and compute_XY have
            machine code for X.Y and later minor versions; compute_XY also has PTX, which the driver compiles for all
            later versions. Element-wise kernels of compute_XY have PTX only: the first start on an H200 (9.0) takes 4 s
            longer.
    """
    major, minor = compute_capability
    code = ""
    for kind, theirs, less in re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built)):
        if int(theirs) == major and int(less) <= minor:
            return "binary"
        if kind == "compute" and (int(theirs), int(less)) <= (major, minor):
            code = "PTX"
    return code


def notes(found: Mapping[str, Any]) -> list[str]:
    """Returns warnings about the result of `describe`: GPUs for which TensorFlow contains no machine code."""
    lines = []
    for name, code in dict.fromkeys((gpu["name"], gpu["code"]) for gpu in found.get("gpus", ())):
        if code == "PTX":
            lines.append(
                f"TensorFlow has no machine code for {name}: the driver compiles each kernel at its first use, for "
                "minutes in all. Set CUDA_CACHE_PATH to a local disk and CUDA_CACHE_MAXSIZE=4294967296 to keep them"
            )
        elif code == "":
            lines.append(
                f"TensorFlow has no code for {name}, only for {', '.join(found['built_for'])}: use another build"
            )
    return lines
