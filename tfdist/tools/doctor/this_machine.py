"""`tfdist doctor` without a config: what this machine is, whether TensorFlow can use it, and how workers are started.

Alone, or under a launcher: then each process looks at its own host, and those with problems print.
"""

import os
import platform
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from tfdist import config as config_lib
from tfdist.cluster.devices import machine, unused_gpus
from tfdist.cluster.devices.machine import Machine
from tfdist.cluster.discovery import environment, host_names
from tfdist.cluster.discovery.worker_spec import WorkerSpec
from tfdist.tools.doctor import checks
from tfdist.tools.doctor.checks import BAD, LOOK, OK, Finding, from_error

_MAKERS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel"}
# Bytes that a run of a small model with its data and checkpoints needs.
_LITTLE_DISK = 2**30


def software(here: Machine, versions: Mapping[str, str | None]) -> Finding:
    """Checks processor and versions; TensorFlow is not imported."""
    names = [f"{name} {each or 'of unknown version'}" for name, each in versions.items()]
    text = ", ".join([f"Python {platform.python_version()}", *names])
    problem = machine.refusal(here, versions)
    return Finding("software", BAD, f"{text}: {problem}") if problem else Finding("software", OK, text)


def processor(here: Machine) -> Finding:
    """Describes the processor and the memory."""
    known = [flag for flag in ("avx", "avx2", "avx512f", "amx_bf16") if flag in here.processor_flags]
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    cores = f"{psutil.cpu_count(logical=False) or os.cpu_count()} cores"
    parts = [here.architecture, cores, memory, " ".join(known)]
    return Finding("machine", OK, ", ".join(filter(None, [*parts, here.site])))


def gpus(here: Machine, listed: int, problem: str) -> list[Finding]:
    """Compares the GPUs of the machine with the number that TensorFlow lists; `problem`: why it lists none."""
    found = ", ".join(f"{count} of {_MAKERS[maker]}" for maker, count in here.gpus.items()) or "none"
    if problem:
        return [Finding("GPUs", BAD, problem)]
    if note := unused_gpus.of_other_makers(here):
        return [Finding("GPUs", LOOK, f"{found}; TensorFlow lists {listed}. {note}")]
    return [Finding("GPUs", OK, f"{found}; TensorFlow lists {listed}")]


def launcher(env: Mapping[str, str]) -> tuple[list[Finding], WorkerSpec | None]:
    """Describes how this process was started, and checks the names of the other workers' hosts."""
    options = config_lib.ClusterOptions()
    try:
        spec = environment.resolve(env, port_base=options.port_base, port_count=options.port_count)
    except ValueError as error:
        return [from_error("launcher", error)], None
    if spec.num_workers == 1:
        found = Finding("launcher", LOOK, spec.note) if spec.note else Finding("launcher", OK, "none: one worker")
        return [found], spec
    findings = [Finding("launcher", OK, f"{spec.launcher}: worker {spec.rank} of {spec.num_workers}")]
    try:
        host_names.check(spec, env)
    except ValueError as error:
        findings.append(from_error("host names", error))
    return findings, spec


def disk(folder: Path) -> Finding:
    """Checks that files can be written in `folder`, and the free space."""
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:,.1f} GiB free in {folder}"
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", LOOK, f"{text}, which cannot be written", "Start where you can write, or give --workdir."
        )
    return Finding("disk", LOOK if free < _LITTLE_DISK else OK, text)


def look(env: Mapping[str, str]) -> tuple[list[Finding], int]:
    """Returns the findings, and the rank of this process."""
    here = machine.read(env)
    findings = [processor(here), software(here, machine.package_versions())]
    if findings[-1].verdict == OK:
        from tfdist.cluster.devices import gpu_software

        listed, problem = 0, ""
        try:
            listed = gpu_software.num_listed(env)
        except gpu_software.GpusNotFoundError as error:
            problem = str(error)
        findings += gpus(here, listed, problem)
        if listed:
            findings.append(Finding("GPU software", OK, checks.describe_gpus(gpu_software.describe(env))))
    started, spec = launcher(env)
    return [*findings, *started, disk(Path.cwd())], spec.rank if spec else 0
