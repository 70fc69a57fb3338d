"""What results and speed on GPUs depend on: versions, settings, code for their architecture."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.devices import gpu_table, machine

# Environment variables that change how GPUs compute or communicate.
_VARIABLES = ("TF_DETERMINISTIC_OPS", "TF_FORCE_GPU_ALLOW_GROWTH", "NVIDIA_TF32_OVERRIDE", "XLA_FLAGS", "NCCL_")


def facts(details: Sequence[Mapping[str, Any]], build: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """See `gpu_software.describe`; for GPUs with these `device_name` and `compute_capability`."""
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
        "driver": gpu_table.driver_version(),
        "built_for": list(build.get("cuda_compute_capabilities", [])),
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
        built: TensorFlow's `cuda_compute_capabilities`, such as ["sm_80", "compute_90"]. Both have machine code for
            X.Y and later minor versions; compute_XY also has PTX, which the driver compiles for all later versions.
            Element-wise kernels of compute_XY have PTX only; on an H200 (9.0) they make the first start 4 s longer.
    """
    major, minor = compute_capability
    kinds = {"sm": False, "compute": False}
    for word in built:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", word)
        if match:
            theirs = (int(match[2]), int(match[3]))
            kinds["sm"] |= theirs[0] == major and theirs[1] <= minor
            kinds["compute"] |= match[1] == "compute" and theirs <= (major, minor)
    return "binary" if kinds["sm"] else "PTX" if kinds["compute"] else ""


def notes(found: Mapping[str, Any]) -> list[str]:
    """Returns warnings about the result of `facts`: GPUs for which TensorFlow contains no machine code."""
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
