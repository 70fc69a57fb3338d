"""Whether TensorFlow can use the GPUs of this host: CUDA build and libraries, driver, code for their architecture."""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import host_gpus, machine
from tfdist.config import tensorflow_log

# Environment variables that change how GPUs compute or communicate.
_VARIABLES = ("TF_DETERMINISTIC_OPS", "TF_FORCE_GPU_ALLOW_GROWTH", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "NCCL_")


class GpusNotFoundError(ValueError):
    """This host has GPUs, but TensorFlow lists none; the message has the reason."""


def num_listed(env: Mapping[str, str]) -> int:
    """Returns how many GPUs TensorFlow lists, without its log: on hosts without GPUs it reports a failed driver.

    Raises:
        GpusNotFoundError: none, but this host has GPUs.
    """
    with tensorflow_log.quiet():
        number = len(tf.config.list_physical_devices("GPU"))
    if not number:
        check_found(env)
    return number


def check_found(env: Mapping[str, str], proc: Path = Path("/proc")) -> None:
    """Checks that this host has no GPUs, in a process in which TensorFlow lists none.

    Args:
        env: see `host_gpus.unused_by_tensorflow`.
        proc: the folder of the kernel's files.

    Raises:
        GpusNotFoundError: it has; with the reason why TensorFlow lists none, and what to install.
    """
    found = host_gpus.unused_by_tensorflow(env, proc)
    if found:
        here = machine.Machine(architecture=platform.machine(), site=machine.site(env))
        driver = host_gpus.driver_version(proc)
        reason = why_unused(tf.sysconfig.get_build_info(), missing_libraries(), driver, here)
        raise GpusNotFoundError(
            f"This host has {found}, but TensorFlow {tf.__version__} lists none: {reason} To train on the CPU, set "
            "--config.cluster.gpus=0."
        )


def why_unused(build: Mapping[str, Any], missing: Sequence[str], driver: str, here: machine.Machine) -> str:
    """Returns the probable reason why TensorFlow lists no GPU, and what to do.

    Args:
        build: TensorFlow's build information.
        missing: the result of `missing_libraries`.
        driver: version of the NVIDIA driver; "": unknown.
        here: the architecture and the site.
    """
    install = f"{sys.executable} -m pip install 'tensorflow[and-cuda]=={tf.__version__}'"
    if not build.get("is_cuda_build"):
        return f"it was built without CUDA. {machine.advice(here, 'nvidia')}"
    cuda = f"CUDA {build.get('cuda_version')} and cuDNN {build.get('cudnn_version')}"
    container = "In a container, also pass the GPUs: apptainer exec --nv, docker run --gpus=all."
    if missing:
        return (
            f"CUDA's libraries are missing ({', '.join(missing)}). Run: {install} (or load the site's modules of "
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


def generated_code(compute_capability: Sequence[int], built: Sequence[str]) -> str:
    """Returns what this build of TensorFlow contains for a GPU: "binary", "PTX", or "" for nothing.

    Args:
        compute_capability: (major, minor).
        built: TensorFlow's `cuda_compute_capabilities`, such as ["sm_80", "compute_90"]. sm_XY is machine code for
            X.Y and later minor versions; compute_XY is PTX, which the driver compiles for X.Y and all later versions.
    """
    major, minor = compute_capability
    kinds = {"sm": False, "compute": False}
    for word in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", word)
        if match:
            theirs = (int(match[2]), int(match[3]))
            same_binary = theirs[0] == major and theirs[1] <= minor
            kinds[match[1]] |= same_binary if match[1] == "sm" else theirs <= (major, minor)
    return "binary" if kinds["sm"] else "PTX" if kinds["compute"] else ""


def describe(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns what results and speed on this worker's GPUs depend on, as JSON values; {} without GPUs."""
    devices = tf.config.get_visible_devices("GPU")
    if not devices:
        return {}
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    return facts(details, tf.sysconfig.get_build_info(), env)


def facts(details: Sequence[Mapping[str, Any]], build: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the same as `describe`, for GPUs with these `device_name` and `compute_capability`."""
    gpus = []
    for detail in details:
        capability = detail.get("compute_capability")
        built = build.get("cuda_compute_capabilities", [])
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
        "built_for": list(build.get("cuda_compute_capabilities", [])),
        "cuda": machine.version("nvidia-cuda-runtime-cu12") or f"{build.get('cuda_version')} (build)",
        "cudnn": machine.version("nvidia-cudnn-cu12") or f"{build.get('cudnn_version')} (build)",
        "nccl": machine.version("nvidia-nccl-cu12") or "unknown",
        "tf32": tf.config.experimental.tensor_float_32_execution_enabled() and env.get("NVIDIA_TF32_OVERRIDE") != "0",
        "variables": {name: value for name, value in sorted(env.items()) if name.startswith(_VARIABLES)},
    }


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
