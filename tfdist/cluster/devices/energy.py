"""The energy that the chief's machine has used: its GPUs' by NVML, its processors' by RAPL. Imports no TensorFlow.

RAPL counts whole processors, also for other jobs of the machine. Since 2020 only root may read it on most systems
(CVE-2020-8694). NVML counts each GPU since the driver was loaded.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist.cluster.discovery import worker_spec

_POWERCAP = Path("/sys/class/powercap")


def meter(env: Mapping[str, str], powercap: Path = _POWERCAP) -> Callable[[], dict[str, float]]:
    """Returns a function that returns joules since its first call by "gpu" and "processor", those that are readable.

    Args:
        env: CUDA_VISIBLE_DEVICES names the GPUs.
        powercap: the directory of RAPL's counters, micro-joules that wrap around.
    """
    packages = [_Package(path) for path in sorted(powercap.glob("intel-rapl:*")) if path.name.count(":") == 1]
    gpus = _gpus(env)
    first: dict[str, float] = {}

    def read() -> dict[str, float]:
        now: dict[str, float] = {}
        for package in packages:
            with contextlib.suppress(OSError, ValueError):
                now["processor"] = now.get("processor", 0.0) + package.joules()
        joules = [value for gpu in gpus if (value := gpu()) is not None]
        if joules:
            now["gpu"] = sum(joules)
        for name, value in now.items():
            first.setdefault(name, value)
        return {name: value - first[name] for name, value in now.items()}

    return read


class _Package:
    """A processor: its counter, with the times that it has wrapped around."""

    def __init__(self, path: Path):
        self._path, self._last, self._before = path, 0, 0

    def joules(self) -> float:
        value = int((self._path / "energy_uj").read_text())
        if value < self._last:
            self._before += int((self._path / "max_energy_range_uj").read_text())
        self._last = value
        return (self._before + value) / 1e6


def _gpus(env: Mapping[str, str]) -> list[Callable[[], float | None]]:
    """Returns a function for each visible GPU that returns its joules; [] without NVML, or if it cannot be asked."""
    visible = worker_spec.cuda_devices(env)
    if visible == ():
        return []
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for name in map(str, range(count.value)) if visible is None else visible:
        handle = ctypes.c_void_p()
        if name.isdecimal():
            failed = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
        else:
            failed = nvml.nvmlDeviceGetHandleByUUID(os.fsencode(name), ctypes.byref(handle))
        if not failed:
            found.append(_joules_of(nvml, handle))
    return found


def _joules_of(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> Callable[[], float | None]:
    def read() -> float | None:
        millijoules = ctypes.c_ulonglong()
        failed = nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
        return None if failed else millijoules.value / 1e3

    return read
