"""The doctor's checks: each turns measurements of the workers into findings. Imports no TensorFlow."""

import dataclasses
import functools
import math
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.config import text as text_lib
from tfdist.report import lines

OK, LOOK, BAD = "ok", "look", "BAD"
# Larger differences between clocks affect logs, file dates and certificates.
_CLOCK_SECONDS = 2.0
# Time of a batch in an evaluation, which has no backward pass, in training steps.
_FORWARD = 1 / 3
# In addition to checkpoint.keep: the best, and the one that is being written.
_MORE_CHECKPOINTS = 2

_few = functools.partial(text_lib.list_names, limit=6)


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    check: str
    verdict: str
    finding: str
    advice: str = ""


def from_error(check: str, error: Exception) -> Finding:
    """The finding for an error, whose message says what to do."""
    return Finding(check, BAD, " ".join(str(error).split()))


def versions(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Compares Python, TensorFlow and Keras. The metadata of a worker has {"versions": {name: version}}."""
    found = []
    for name in workers[0]["versions"]:
        by_version: dict[str, list[int]] = {}
        for rank, worker in enumerate(workers):
            by_version.setdefault(worker["versions"].get(name, "none"), []).append(rank)
        if len(by_version) == 1:
            found.append(Finding("versions", OK, f"{name} {next(iter(by_version))}"))
            continue
        text = "; ".join(f"{version} on rank {_few(ranks)}" for version, ranks in by_version.items())
        found.append(Finding("versions", BAD, f"{name}: {text}", "Load the same environment on all nodes."))
    return found


def host_names(workers: Sequence[Mapping[str, Any]]) -> Finding:
    """Checks that each worker resolves the names that it needs: the metadata of a worker has {"unresolved": [host]}."""
    bad = {rank: worker["unresolved"] for rank, worker in enumerate(workers) if worker["unresolved"]}
    if not bad:
        return Finding("host names", OK, f"{len(workers)} worker(s) can resolve all names")
    missing = dict.fromkeys(host for unresolved in bad.values() for host in unresolved)
    text = f"rank {_few(bad)} cannot resolve {_few(missing)}"
    return Finding("host names", BAD, text, "Ask the site's administrators for the nodes' names on their network.")


def unresolved(hosts: Sequence[str]) -> list[str]:
    """The `hosts` whose names this machine cannot resolve."""
    found = []
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            found.append(host)
    return found


def gpus(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Compares the numbers of GPUs, what they are, and the software that uses them.

    The metadata of a worker has {"gpus": number it uses, "gpus_visible": number that TensorFlow lists, "gpus_on_node":
    number of the job on its node or 0, "local_size": workers on its node, "gpu_problem": why TensorFlow lists none or
    "", "gpu_software": the result of `gpu_software.describe`}.
    """
    blind = [rank for rank, worker in enumerate(workers) if worker["gpu_problem"]]
    if blind:
        return [Finding("GPUs", BAD, f"rank {_few(blind)}: {workers[blind[0]]['gpu_problem']}")]
    counts = sorted({worker["gpus"] for worker in workers})
    if counts == [0]:
        return [Finding("GPUs", LOOK, "none: the replicas run on CPUs", "Request GPUs if the run should use them.")]
    if len(counts) > 1:
        text = f"between {counts[0]} and {counts[-1]} per worker"
        return [Finding("GPUs", BAD, text, "Request the same number on each node.")]
    equal = Finding("GPUs", OK, f"{counts[0]} per worker, none used by two workers")
    return [equal, *_hidden_gpus(workers), *_gpu_software(workers)]


def _hidden_gpus(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    sharing = [rank for rank, worker in enumerate(workers) if worker["local_size"] > 1]
    hidden = [rank for rank in sharing if workers[rank]["gpus_visible"] < workers[rank]["gpus_on_node"]]
    if not hidden:
        return []
    first = workers[hidden[0]]
    text = f"rank {_few(hidden)}: sees {first['gpus_visible']} of the {first['gpus_on_node']} GPUs of its node"
    advice = (
        "NCCL uses NVLink only between GPUs that each task sees: request --gpus-per-node instead of --gpus-per-task, "
        "or add --gpu-bind=none (docs/slurm.md)."
    )
    return [Finding("NVLink", LOOK, text, advice)]


def _gpu_software(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One line for each different set of GPUs and versions, and one for GPUs without machine code."""
    ranks: dict[str, list[int]] = {}
    without: dict[tuple[str, str], list[int]] = {}
    for rank, worker in enumerate(workers):
        found = worker["gpu_software"]
        ranks.setdefault(describe_gpus(found), []).append(rank)
        for gpu in found["gpus"]:
            if gpu["code"] in ("PTX", ""):
                without.setdefault((gpu["name"], gpu["code"]), []).append(rank)
    if len(ranks) == 1:
        findings = [Finding("GPU software", OK, next(iter(ranks)))]
    else:
        text = "; ".join(f"rank {_few(those)}: {line}" for line, those in ranks.items())
        advice = "Results differ in the last bits between such workers, and the slowest sets the pace."
        findings = [Finding("GPU software", LOOK, text, advice)]
    for (name, code), those in without.items():
        who = f"rank {_few(dict.fromkeys(those))}: TensorFlow has"
        if code == "PTX":
            advice = "Set CUDA_CACHE_PATH to a local disk and CUDA_CACHE_MAXSIZE=4294967296, and time no first step."
            text = f"{who} only PTX for {name}: the driver compiles it at the first use, for minutes"
            findings.append(Finding("GPU code", LOOK, text, advice))
        else:
            built = ", ".join(workers[those[0]]["gpu_software"]["built_for"])
            text = f"{who} no code for {name}, only for {built}"
            findings.append(Finding("GPU code", BAD, text, "Use another build of TensorFlow."))
    return findings


def describe_gpus(found: Mapping[str, Any]) -> str:
    """Returns the GPUs of a worker and the versions of their software as one line."""
    gpus = dict.fromkeys((gpu["name"], gpu["compute_capability"]) for gpu in found["gpus"])
    names = [f"{name} (compute capability {one}{_fast_precisions(one)})" for name, one in gpus]
    versions = ", ".join(f"{label} {found[label.lower()]}" for label in ("driver", "CUDA", "cuDNN", "NCCL"))
    return f"{', '.join(names)}; {versions}; TF32 {'on' if found['tf32'] else 'off'}"


def _fast_precisions(compute_capability: str | None) -> str:
    """Returns the values of `train.precision` that a GPU computes faster than float32, in words."""
    major = int((compute_capability or "0").partition(".")[0])
    return ", fast in bfloat16 and float16" if major >= 8 else ", fast in float16" if major == 7 else ""


def clocks(times: Sequence[float]) -> Finding:
    """Compares the workers' clocks; `times` in seconds, read at about the same time."""
    difference = max(times) - min(times)
    if difference > _CLOCK_SECONDS:
        rank = max(range(len(times)), key=lambda index: abs(times[index] - sorted(times)[len(times) // 2]))
        text = f"differ by up to {difference:.1f} s (rank {rank} is off)"
        return Finding("clocks", LOOK, text, "Report it to the site's administrators.")
    return Finding("clocks", OK, f"differ by up to {difference:.2f} s, including the time of the measurement")


def data(rates: Sequence[float], worker_batch: int) -> Finding:
    """Compares the examples/s that the workers read and prepare, in rank order, with those of a step."""
    slowest = min(range(len(rates)), key=lambda rank: rates[rank])
    text = f"{rates[slowest]:,.0f} examples/s on the slowest worker (rank {slowest})"
    step = f"a step's {worker_batch} take {1e3 * worker_batch / max(rates[slowest], 1e-9):,.1f} ms"
    if len(rates) > 1 and rates[slowest] < 0.5 * max(rates):
        advice = "One slow node slows all: check its disk, or cache the examples (config.data.cache)."
        return Finding("data", LOOK, f"{text}, {max(rates):,.0f} on the fastest; {step}", advice)
    return Finding("data", OK, f"{text}; {step}")


def memory(variables: int, gradients: int, free: int) -> Finding:
    """Checks that weights, slots and gradients fit into the free memory of a replica; all arguments in bytes."""
    needed = variables + gradients
    text = f"weights, slots and gradients take {needed / 2**20:,.0f} MiB of {free / 2**20:,.0f} MiB free per replica"
    if needed > free:
        return Finding("memory", BAD, text, "Use a smaller model, or an optimizer with fewer slots.")
    if needed > 0.5 * free:
        return Finding("memory", LOOK, text, "Little memory is left for activations: run tfdist batch_size.")
    return Finding("memory", OK, f"{text}; the rest is for activations (tfdist batch_size)")


def disk(workdir: Path, checkpoint_bytes: int, keep: int) -> Finding:
    """Checks that the checkpoints of a run, `keep` and `_MORE_CHECKPOINTS`, fit into the free space of `workdir`."""
    free = shutil.disk_usage(workdir).free
    needed = (keep + _MORE_CHECKPOINTS) * checkpoint_bytes
    text = f"{keep} checkpoints and the best take {needed / 2**20:,.0f} MiB of {free / 2**20:,.0f} MiB free"
    if needed > free:
        return Finding("disk", BAD, text, "Free space, choose another --workdir, or lower config.checkpoint.keep.")
    return Finding("disk", OK, text)


def communication(seconds: float, num_bytes: int, replicas: int, step_seconds: float) -> Finding:
    """Compares the all-reduce of `num_bytes` of gradients with the rest of a step, both in seconds."""
    if replicas == 1:
        return Finding("all-reduce", OK, "one replica: no communication")
    sent = 2 * (replicas - 1) / replicas * num_bytes
    rate = f"{8e-9 * sent / seconds:.3g} Gbit/s"
    text = f"{num_bytes / 2**20:.3g} MiB of gradients over {replicas} replicas: {1e3 * seconds:.3g} ms, {rate}"
    if seconds > step_seconds:
        advice = (
            "More than half of a step: use larger batches, config.communication.dtype=bfloat16 (with NCCL float16), or "
            "a faster network."
        )
        return Finding("all-reduce", LOOK, f"{text}; the rest of a step {1e3 * step_seconds:.3g} ms", advice)
    return Finding("all-reduce", OK, f"{text}; the rest of a step {1e3 * step_seconds:.3g} ms")


def duration(step_seconds: float, steps: int, evaluated: float, start_seconds: float, limit: float | None) -> Finding:
    """Estimates how long the run takes, and how many jobs it needs.

    Args:
        step_seconds: of a training step, with reading and communication.
        evaluated: the examples of all its evaluations, in global batches.
        start_seconds: from the start of a process to its first step.
        limit: time limit of a job in seconds; None: unknown.
    """
    seconds = (steps + _FORWARD * evaluated) * step_seconds
    text = f"{steps:,} steps of {1e3 * step_seconds:.3g} ms: about {lines.duration(seconds)} for the run"
    text += f", and {lines.duration(start_seconds)} for each start"
    if limit is None:
        return Finding("time", OK, text)
    in_a_job = limit - start_seconds
    job = lines.duration(limit)
    if in_a_job <= 0:
        return Finding("time", LOOK, text, f"A job of {job} ends before the first step: raise its time limit.")
    jobs = math.ceil(seconds / in_a_job)
    if jobs == 1:
        return Finding("time", OK, f"{text}: within one job of {job}")
    advice = (
        f"It resumes {jobs - 1} time(s): run the same command again, or set config.cluster.requeue (docs/slurm.md)."
    )
    return Finding("time", LOOK, f"{text}: {jobs} jobs of {job}", advice)
