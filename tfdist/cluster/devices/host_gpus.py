"""The NVIDIA GPUs of this host, as NVML, the driver's library, lists them. Imports no TensorFlow."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cluster.discovery import worker_spec

if TYPE_CHECKING:
    import pynvml

_PROC = Path("/proc")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostGpu:
    """A GPU of this host."""

    name: str
    # Its names in CUDA_VISIBLE_DEVICES: its UUID, or those of its MIG slices.
    uuids: tuple[str, ...]
    # 0: unknown.
    memory_mib: int


def query() -> tuple[HostGpu, ...] | None:
    """Returns the GPUs that this process may use, in the driver's order; None without a working driver."""
    import pynvml  # Takes about 20 ms.

    try:
        pynvml.nvmlInit()
        return tuple(_describe(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:  # There is no driver, or it is broken.
        return None


def _describe(gpu: "pynvml.c_nvmlDevice_t") -> HostGpu:
    import pynvml

    slices, memory = [], 0
    with contextlib.suppress(pynvml.NVMLError):  # No MIG.
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with contextlib.suppress(pynvml.NVMLError_NotFound):
                slices.append(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))
    with contextlib.suppress(pynvml.NVMLError):  # A GPU without its own memory, as in a GB10.
        memory = pynvml.nvmlDeviceGetMemoryInfo(gpu).total // 2**20
    # CUDA uses a GPU with slices only through its slices.
    uuids = tuple(slices) or (pynvml.nvmlDeviceGetUUID(gpu),)
    return HostGpu(name=pynvml.nvmlDeviceGetName(gpu), uuids=uuids, memory_mib=memory)


def assigned_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns names of this machine's GPUs: the entries of CUDA_VISIBLE_DEVICES, or the UUIDs of all."""
    visible = worker_spec.cuda_devices(env)
    return tuple(uuid for gpu in query() or () for uuid in gpu.uuids) if visible is None else visible


def unused_by_tensorflow(env: Mapping[str, str], proc: Path = _PROC) -> str:
    """Describes the GPUs of this host that this process may use; called if TensorFlow lists none.

    Args:
        env: the environment of the process; CUDA_VISIBLE_DEVICES may hide all GPUs.

    Returns:
        For example "4 GPU(s), according to NVML"; "" if there are none, or all are hidden.
    """
    if worker_spec.cuda_devices(env) == ():
        return ""
    found, source = query(), "NVML"
    if found is None:
        # /proc lists all GPUs of the host, even in a job that has requested none.
        slurm = [name for name in env if name.startswith("SLURM_") and "GPU" in name]
        if "SLURM_JOB_ID" in env and not slurm and "CUDA_VISIBLE_DEVICES" not in env:
            return ""
        source = f"{proc}/driver/nvidia/gpus"
        found = tuple(Path(source).glob("*"))
    return f"{len(found)} GPU(s), according to {source}" if found else ""


def why_none(env: Mapping[str, str]) -> str:
    """Returns, for a message, why a process has no GPU: they are hidden, or there are none."""
    name = "CUDA_VISIBLE_DEVICES"
    if name in env:
        return f"{name}={env[name]!r} hides them, or this machine has none."
    return "NVML and /proc/driver/nvidia list none."


def driver_version() -> str:
    """Returns the version of the NVIDIA driver, such as "550.54.15"; "" without a working driver."""
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    return ""
