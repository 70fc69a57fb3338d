"""The NVIDIA GPUs of this host, as nvidia-smi and the driver's files in /proc list them. Imports no TensorFlow."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.discovery import worker_spec

_PROC = Path("/proc")
_SECONDS = 60.0
# Exit code of nvidia-smi without a GPU, as in a job that has requested none; other codes are errors of the driver.
_NO_DEVICE = 6


def assigned_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """Returns names of this machine's GPUs: the entries of CUDA_VISIBLE_DEVICES, or the UUIDs of `nvidia-smi -L`."""
    visible = worker_spec.cuda_devices(env)
    return list_gpus() if visible is None else visible


def list_gpus() -> tuple[str, ...]:
    """Returns the UUIDs of `nvidia-smi -L`; () without the program or a GPU."""
    return parse_list(nvidia_smi("-L") or "")


def parse_list(text: str) -> tuple[str, ...]:
    """Parses the output of `nvidia-smi -L`: the UUIDs of GPUs; of a GPU with MIG slices, those of the slices."""
    found: list[str] = []
    for line in text.splitlines():
        match = re.search(r"\(UUID: ([\w/-]+)\)", line)
        if match is None:
            continue
        if line.startswith(" ") and found and not found[-1].startswith("MIG"):
            found.pop()  # CUDA uses a GPU with slices only through its slices.
        found.append(match[1])
    return tuple(found)


def unused_by_tensorflow(env: Mapping[str, str], proc: Path = _PROC) -> str:
    """Describes the GPUs of this host that a process may use, for a process in which TensorFlow lists none.

    Args:
        env: without effect on a process that hides all GPUs with CUDA_VISIBLE_DEVICES.

    Returns:
        Such as "4 GPU(s), according to nvidia-smi -L"; "" if there are none.
    """
    if worker_spec.cuda_devices(env) == ():
        return ""
    text = nvidia_smi("-L")
    if text is not None:
        names = parse_list(text)
        return f"{len(names)} GPU(s), according to nvidia-smi -L" if names else ""
    # /proc lists all GPUs of the host, also in a job that has requested none.
    slurm = [name for name in env if name.startswith("SLURM_") and "GPU" in name]
    if "SLURM_JOB_ID" in env and not slurm and "CUDA_VISIBLE_DEVICES" not in env:
        return ""
    folder = proc / "driver" / "nvidia" / "gpus"
    count = len(list(folder.iterdir())) if folder.is_dir() else 0
    return f"{count} GPU(s), according to {folder}" if count else ""


def nvidia_smi(*arguments: str) -> str | None:
    """Returns the output of the program; None: there is no such program, or it cannot use the driver."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode in (0, _NO_DEVICE) else None
