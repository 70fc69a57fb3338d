"""Chooses whether TensorFlow computes with oneDNN on this processor, before TensorFlow is imported.

TensorFlow 2.21 turns oneDNN on by itself only on processors with instructions for neural networks (AVX512-VNNI,
AVX512-BF16, AVX-VNNI, AMX). On others it was measured here to be faster by up to 1.8 times. The choice changes the last
bits of results: it is the same on all workers, it is saved with a run, and a run that is resumed keeps it.
"""

import contextlib
import dataclasses
import json
import platform
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# The file of a workdir, and the entry in it, that record the choice.
ENVIRONMENT, ENTRY = "environment.json", "onednn"
# Flags of /proc/cpuinfo with which TensorFlow turns oneDNN on by itself: `DefaultOneDnnPolicy` in its util.cc.
_ON_BY_DEFAULT = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
# The flag of a processor that multiplies tiles of bfloat16: AMX.
TILES = "amx_bf16"
# The same for ARM, (implementer, part): Neoverse V1.
_ARM_ON_BY_DEFAULT = ("0x41", "0xd40")
# What TensorFlow accepts as the variable's value, in small or capital letters; it ignores any other one.
_VALUES = {"0": False, "false": False, "1": True, "true": True}
# (vendor, family) of processors with AVX2 on which it was measured to be faster (docs/speed.md).
_FASTER = {("AuthenticAMD", "23"), ("AuthenticAMD", "25")}
_DEFAULT = "TensorFlow's default on this processor"
_LATE = "TensorFlow's default, as it was imported before tfdist"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """Whether TensorFlow uses oneDNN in this process, and the reason, for the log."""

    enabled: bool
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Processor:
    """What /proc/cpuinfo says of the first processor; all empty where there is no such file."""

    vendor: str = ""
    family: str = ""
    name: str = ""
    flags: frozenset[str] = frozenset()
    # Of ARM: implementer and part.
    arm: tuple[str, str] = ("", "")

    @property
    def on_by_default(self) -> bool:
        """Whether TensorFlow uses oneDNN here without being told."""
        return bool(self.flags & _ON_BY_DEFAULT) or self.arm == _ARM_ON_BY_DEFAULT


_chosen: Choice | None = None


def read_processor(text: str | None = None) -> Processor:
    """Returns the processor that `text`, the content of /proc/cpuinfo, describes; None: of this machine."""
    if text is None:
        try:
            text = Path("/proc/cpuinfo").read_text()
        except OSError:
            return Processor()
    facts: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    return Processor(
        vendor=facts.get("vendor_id", ""),
        family=facts.get("cpu family", ""),
        name=facts.get("model name") or facts.get("cpu", ""),  # The latter on POWER.
        flags=frozenset(facts.get("flags", "").split()),
        arm=(facts.get("CPU implementer", ""), facts.get("CPU part", "")),
    )


def choose(env: Mapping[str, str], workdir: Path | None = None) -> Choice:
    """Decides for this process, unless TensorFlow has been imported already.

    Args:
        env: the environment of this process: what the user has set there is taken.
        workdir: the run that is started here or resumed; a saved choice is kept. None: there is none.

    Returns:
        The choice, which `current` returns from then on.
    """
    global _chosen
    if "tensorflow.python" in sys.modules:
        return current(env)
    if _chosen is None or workdir is not None:
        _chosen = _decide(env, workdir)
    return _chosen


def _decide(env: Mapping[str, str], workdir: Path | None) -> Choice:
    processor = read_processor()
    saved = _read_choice(workdir, processor)
    if VARIABLE not in env:
        return saved or _of(processor)
    choice = _of_variable(env[VARIABLE], processor)
    if saved is not None and saved.enabled != choice.enabled:
        return dataclasses.replace(choice, reason=f"{choice.reason}, unlike before: results differ in last bits")
    return choice


@contextlib.contextmanager
def apply_choice(env: MutableMapping[str, str]) -> Iterator[None]:
    """In the block, `env` says what was chosen: TensorFlow reads it at its import, and child processes choose anew."""
    choice = choose(env)
    if VARIABLE in env or choice.enabled == read_processor().on_by_default:
        yield
        return
    env[VARIABLE] = str(int(choice.enabled))
    try:
        yield
    finally:
        del env[VARIABLE]


def current(env: Mapping[str, str]) -> Choice:
    """Returns what TensorFlow does in this process: what was chosen, or what it found when it was imported."""
    if _chosen is not None:
        return _chosen
    if VARIABLE in env:
        return _of_variable(env[VARIABLE], read_processor())
    return Choice(read_processor().on_by_default, _LATE)


def describe(choice: Choice) -> str:
    """Returns the line of the log."""
    return f"oneDNN {'on' if choice.enabled else 'off'}: {choice.reason}; {VARIABLE}=0 or 1 in the environment decides"


def advice(choice: Choice) -> str:
    """Returns what the user should be told at the start; "" if there is nothing."""
    if choice.enabled or choice.reason != _LATE or not _of(read_processor()).enabled:
        return ""
    return (
        "TensorFlow was imported before tfdist, so without oneDNN, which is faster on this processor: import tfdist "
        f"first, or set {VARIABLE}=1"
    )


def _of_variable(value: str, processor: Processor) -> Choice:
    enabled = _VALUES.get(value.lower())
    if enabled is None:
        return Choice(processor.on_by_default, f"TensorFlow's default, as it ignores {VARIABLE}={value!r}")
    return Choice(enabled, f"{VARIABLE}={value}")


def _read_choice(workdir: Path | None, processor: Processor) -> Choice | None:
    """Returns the choice of the run in `workdir`; None if there is none."""
    if workdir is None:
        return None
    try:
        found = json.loads((workdir / ENVIRONMENT).read_text())
        entry = found.get(ENTRY)
    except (OSError, ValueError, AttributeError):  # A damaged file is reported when it is written again.
        return None
    if not isinstance(entry, dict):  # Saved before there was a choice.
        return Choice(processor.on_by_default, "TensorFlow's default, as at the last start of the run")
    return Choice(bool(entry.get("enabled")), "as at the last start of the run")


def _of(processor: Processor) -> Choice:
    """Returns the choice for a new run."""
    has_avx2 = platform.machine() == "x86_64" and "avx2" in processor.flags
    if processor.on_by_default or not has_avx2:
        return Choice(processor.on_by_default, _DEFAULT)
    if (processor.vendor, processor.family) in _FASTER:
        return Choice(True, "measured to be faster on processors of this family")
    return Choice(False, f"{_DEFAULT}, which was not measured")
