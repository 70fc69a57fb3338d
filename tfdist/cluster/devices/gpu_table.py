"""Facts about the NVIDIA GPUs of this host, for tools: their table and connections. Imports no TensorFlow."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from tfdist.cluster.devices import host_gpus

_PCIE = ("pcie.link.gen.max", "pcie.link.width.max")
_QUERY = ("index", "name", "uuid", "memory.total", "compute_cap", *_PCIE)


@dataclasses.dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU in the table of `nvidia-smi --query-gpu`."""

    index: int
    name: str
    uuid: str
    memory_mib: int
    # (8, 0) for an A100; None: this driver does not report it.
    compute_capability: tuple[int, int] | None
    # Of the connection to the host; 0: unknown.
    pcie_generation: int = 0
    pcie_width: int = 0


def query() -> tuple[HostGpu, ...]:
    """Returns the GPUs that nvidia-smi lists, in its order; () without the program."""
    return parse_query(host_gpus.nvidia_smi(f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits") or "")


def parse_query(text: str) -> tuple[HostGpu, ...]:
    """Parses the table of `query`; lines of another form are ignored."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_QUERY) or not fields[0].isdecimal():
            continue
        index, name, uuid, memory, capability, generation, width = fields
        match = re.fullmatch(r"(\d+)\.(\d+)", capability)
        found.append(
            HostGpu(
                index=int(index),
                name=name,
                uuid=uuid,
                memory_mib=int(memory) if memory.isdecimal() else 0,
                compute_capability=(int(match[1]), int(match[2])) if match else None,
                pcie_generation=int(generation) if generation.isdecimal() else 0,
                pcie_width=int(width) if width.isdecimal() else 0,
            )
        )
    return tuple(found)


def why_none(env: Mapping[str, str]) -> str:
    """Returns the reason for a user why a process has no GPU: they are hidden, or there are none."""
    name = "CUDA_VISIBLE_DEVICES"
    if name in env:
        return f"{name}={env[name]!r} hides them, or this machine has none."
    return "nvidia-smi -L and /proc/driver/nvidia list none."


def topology() -> str | None:
    """Returns the matrix of `nvidia-smi topo -m`; None without the program."""
    return host_gpus.nvidia_smi("topo", "-m")


def driver_version(proc: Path = Path("/proc")) -> str:
    """Returns the version of the NVIDIA driver, such as "550.54.15"; "" without a driver."""
    try:
        text = (proc / "driver" / "nvidia" / "version").read_text()
    except OSError:
        return ""
    match = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", text, re.MULTILINE)
    return match[1] if match else ""
