"""What the doctor looks at: each check turns facts of the workers into findings. Imports no TensorFlow."""

import dataclasses
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.discovery import hostlist

OK, LOOK, BAD = "ok", "look", "BAD"
# Clocks that are further apart confuse logs, file dates and certificates.
_CLOCK_SECONDS = 2.0
# Beside those of checkpoint.keep: the best, and the one being written.
_MORE_CHECKPOINTS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    check: str
    verdict: str
    finding: str
    advice: str = ""


def failed(check: str, error: Exception, advice: str = "") -> Finding:
    """The finding that something ended with an error, whose own words say what to do."""
    return Finding(check, BAD, " ".join(str(error).split()), advice)


def versions(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Whether all workers run the same Python, TensorFlow and Keras. A worker holds {"versions": {name: version}}."""
    found = []
    for name in workers[0]["versions"]:
        by_version: dict[str, list[int]] = {}
        for rank, worker in enumerate(workers):
            by_version.setdefault(worker["versions"].get(name, "none"), []).append(rank)
        if len(by_version) == 1:
            found.append(Finding("versions", OK, f"{name} {next(iter(by_version))}"))
            continue
        told = "; ".join(f"{version} on rank {_few(ranks)}" for version, ranks in by_version.items())
        found.append(Finding("versions", BAD, f"{name}: {told}", "Load the same environment on all nodes."))
    return found


def names(workers: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether every worker can look up the others' names. A worker holds {"unresolved": [host]}."""
    bad = {rank: worker["unresolved"] for rank, worker in enumerate(workers) if worker["unresolved"]}
    if not bad:
        return Finding("host names", OK, f"{len(workers)} worker(s) can look all names up")
    missing = dict.fromkeys(host for unresolved in bad.values() for host in unresolved)
    told = f"rank {_few(bad)} cannot look up {_few(missing)}"
    return Finding("host names", BAD, told, "Ask the site which names its nodes have on the network between them.")


def unresolved(addresses: Sequence[str]) -> list[str]:
    """The hosts of "host:port" addresses that this machine cannot look up."""
    found = []
    for host in dict.fromkeys(hostlist.split_address(address)[0] for address in addresses):
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            found.append(host)
    return found


def gpus(workers: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Whether GPUs that a host has are seen. A worker holds {"gpus": seen by TensorFlow, "on_host": by nvidia-smi}."""
    blind = [rank for rank, worker in enumerate(workers) if worker["on_host"] and not worker["gpus"]]
    if blind:
        advice = "TensorFlow lacks CUDA's libraries: install tensorflow[and-cuda], or load the site's modules."
        told = f"rank {_few(blind)}: the host has {workers[blind[0]]['on_host']} GPU(s), and TensorFlow lists none"
        return [Finding("GPUs", BAD, told, advice)]
    counts = sorted({worker["gpus"] for worker in workers})
    if counts == [0]:
        return [Finding("GPUs", LOOK, "none: the replicas run on processors", "Ask for GPUs if you meant to have any.")]
    if len(counts) > 1:
        return [Finding("GPUs", BAD, f"between {counts[0]} and {counts[-1]} a worker", "Ask for as many on each node.")]
    return [Finding("GPUs", OK, f"{counts[0]} a worker, none held by two workers")]


def clocks(times: Sequence[float]) -> Finding:
    """Whether the workers' clocks agree; `times` in seconds, all read at about the same moment."""
    apart = max(times) - min(times)
    if apart > _CLOCK_SECONDS:
        late = max(range(len(times)), key=lambda rank: abs(times[rank] - sorted(times)[len(times) // 2]))
        return Finding("clocks", LOOK, f"{apart:.1f} s apart; rank {late} is the odd one", "Tell the site.")
    return Finding("clocks", OK, f"within {apart:.2f} s, the time of asking included")


def data(rates: Sequence[float], batch_of_a_worker: int) -> Finding:
    """How fast each worker reads and prepares; `rates` in examples per second."""
    slowest = min(range(len(rates)), key=lambda rank: rates[rank])
    told = f"{rates[slowest]:,.0f} examples/s on the slowest worker (rank {slowest})"
    step = f"a step's {batch_of_a_worker} take {1e3 * batch_of_a_worker / max(rates[slowest], 1e-9):,.1f} ms"
    if len(rates) > 1 and rates[slowest] < 0.5 * max(rates):
        advice = "One slow node slows all: look at its disk, or keep the examples (config.data.cache)."
        return Finding("data", LOOK, f"{told}, {max(rates):,.0f} on the fastest; {step}", advice)
    return Finding("data", OK, f"{told}; {step}")


def memory(variables: int, gradients: int, free: int) -> Finding:
    """Whether weights, slots and gradients (bytes) fit into what a replica has free; activations come on top."""
    needed = variables + gradients
    told = f"weights, slots and gradients take {needed / 2**20:,.0f} MiB of {free / 2**20:,.0f} MiB a replica has free"
    if needed > free:
        return Finding("memory", BAD, told, "Take a smaller model, or an optimizer with fewer slots.")
    if needed > 0.5 * free:
        return Finding("memory", LOOK, told, "Little is left for activations: run tfdist batch_size.")
    return Finding("memory", OK, f"{told}; the rest is for activations (tfdist batch_size)")


def disk(workdir: Path, checkpoint_bytes: int, keep: int) -> Finding:
    """Whether the checkpoints that are kept, and those being written, fit into what is free in `workdir`."""
    free = shutil.disk_usage(workdir).free
    needed = (keep + _MORE_CHECKPOINTS) * checkpoint_bytes
    told = f"{keep} checkpoints and the best take {needed / 2**20:,.0f} MiB of {free / 2**20:,.0f} MiB free"
    if needed > free:
        return Finding("disk", BAD, told, "Free space, choose another --workdir, or lower config.checkpoint.keep.")
    return Finding("disk", OK, told)


def communication(seconds: float, num_bytes: int, replicas: int, step_seconds: float) -> Finding:
    """What the sum of the gradients costs beside a step (both in seconds)."""
    if replicas == 1:
        return Finding("all-reduce", OK, "one replica: nothing to sum")
    sent = 2 * (replicas - 1) / replicas * num_bytes
    rate = f"{8e-9 * sent / seconds:.3g} Gbit/s"
    told = f"{num_bytes / 2**20:.3g} MiB of gradients over {replicas} replicas: {1e3 * seconds:.3g} ms, {rate}"
    if seconds > step_seconds:
        advice = "More than half of a step: larger batches, config.communication.dtype=bfloat16, or the fast network."
        return Finding("all-reduce", LOOK, f"{told}; the rest of a step {1e3 * step_seconds:.3g} ms", advice)
    return Finding("all-reduce", OK, f"{told}; the rest of a step {1e3 * step_seconds:.3g} ms")


def _few(names: Iterable[Any]) -> str:
    names = list(names)
    return ", ".join(map(str, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
