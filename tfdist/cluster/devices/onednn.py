"""Chooses whether TensorFlow computes with oneDNN on this processor, before TensorFlow is imported.

By default, TensorFlow enables oneDNN only on processors with instructions for neural networks. On some others, oneDNN
was measured to be up to 1.8 times faster (docs/speed.md). The choice changes the last bits of results, so it must be
the same on all workers, it is saved with a run, and a resumed run keeps it.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# The file in a workdir that records the choice, and its entry there.
ENVIRONMENT, ENTRY = "environment.json", "onednn"
# The CPU flag of AMX, which multiplies tiles of bfloat16.
TILES = "amx_bf16"
# (vendor, family) of processors on which oneDNN was measured to be faster, if they have AVX2 (docs/speed.md).
_FASTER = {("AuthenticAMD", "23"), ("AuthenticAMD", "25")}


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """The first processor in /proc/cpuinfo; all fields are empty if there is no such file."""

    vendor: str = ""
    family: str = ""
    name: str = ""
    flags: frozenset[str] = frozenset()


# The value of the variable while TensorFlow is imported; "": tfdist does not set it; None: not chosen yet.
_chosen: str | None = None


def read_processor(path: Path = Path("/proc/cpuinfo")) -> Processor:
    """Returns the processor of this machine; `path`: the file that describes it."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return Processor()
    facts: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return Processor(
        vendor=facts.get("vendor_id", ""),
        family=facts.get("cpu family", ""),
        name=facts.get("model name") or facts.get("cpu", ""),  # The latter on POWER.
        flags=frozenset(facts.get("flags", "").split()),
    )


def choose(env: Mapping[str, str], workdir: Path | None = None) -> None:
    """Chooses whether TensorFlow uses oneDNN in this process, unless TensorFlow has been imported already.

    Args:
        env: the environment of this process; the user's value of the variable there has precedence.
        workdir: the run's directory; if it holds the choice of an earlier start, that is kept. None: no workdir.
    """
    global _chosen
    if "tensorflow.python" not in sys.modules and (_chosen is None or workdir is not None):
        _chosen = _decide(env, workdir)


def _decide(env: Mapping[str, str], workdir: Path | None) -> str:
    if VARIABLE in env:
        return ""
    # A damaged file is reported later, when it is rewritten.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if workdir is not None:
            return str(int(json.loads((workdir / ENVIRONMENT).read_text())[ENTRY]["enabled"]))
    processor = read_processor()
    return "1" if (processor.vendor, processor.family) in _FASTER and "avx2" in processor.flags else ""


@contextlib.contextmanager
def apply_choice(env: MutableMapping[str, str]) -> Iterator[None]:
    """Sets the choice in `env` only within the block, in which TensorFlow is imported: child processes choose anew."""
    choose(env)
    if _chosen:
        env[VARIABLE] = _chosen
    try:
        yield
    finally:
        if _chosen:
            del env[VARIABLE]


def enabled() -> bool:
    """Returns whether TensorFlow, which has been imported, computes with oneDNN in this process."""
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()
