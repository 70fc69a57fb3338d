"""Rank 0's decision from the workers' reports, in words; see rendezvous.py. Pure functions, no TensorFlow.

A decision is a JSON object: {"members": [...]}, or {"error": name of the exception, "message": text}; if workers are
missing, also their ranks: "missing".
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.liveness.peer_loss import MissingWorkersError


class PortInUseError(OSError):
    """The port that tfdist chose for a worker is in use. All workers may be restarted."""

    exit_code = interruption.EXIT_PEER_LOST


_TYPES = (
    *(interruption.StopError, MissingWorkersError, TimeoutError, ValueError, FileNotFoundError),
    *(PortInUseError, OSError),
)
ERRORS = {error.__name__: error for error in _TYPES}
# Before the names of `must_match` that only those workers compare that have them: a file that a worker has imported.
FILE = "file "
# Maximum number of lines in a message.
_MAX_NAMED = 20


def members_or_raise(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the members, or raises the error."""
    if "error" in decision:
        error = ERRORS[decision["error"]](decision["message"])
        error.missing = decision.get("missing", ())
        raise error
    return decision["members"]


def decide(
    hellos: Mapping[int, dict], reports: Mapping[int, dict], addresses: Sequence[str], seconds: float
) -> dict[str, Any]:
    """Decides after all workers have reported, or after the deadline.

    Args:
        hellos: rank -> {"me": {host, pid, metadata, must_match, exclusive}} of the workers that contacted rank 0.
        reports: rank -> {"unreached": {str(rank): reason}, "failed": reason, "stopped": by what, "workdir": path where
            it is not shared, "port_in_use": whether this is the reason of "failed"}.
        addresses: "host:port" of each worker in rank order.
        seconds: the time limit that has passed.
    """
    requests = {rank: report["stopped"] for rank, report in reports.items() if report.get("stopped")}
    if requests:
        return decide_stop(requests, addresses)
    failed = {rank: report["failed"] for rank, report in reports.items() if report["failed"]}
    if failed:
        return failure(failed, addresses, port_in_use=all(reports[rank].get("port_in_use") for rank in failed))
    absent = [rank for rank in range(len(addresses)) if rank not in hellos]
    if absent:
        unreached = reports.get(0, {"unreached": {}})["unreached"]
        return missing(
            {rank: unreached.get(str(rank)) or "it has not contacted rank 0" for rank in absent}, addresses, seconds
        )
    if len(reports) < len(addresses) or any(report["unreached"] for report in reports.values()):
        head = f"All workers started, but some could not connect to each other within {seconds:g} s:"
        return _error(TimeoutError, head, _cut_off(hellos, reports, addresses))
    workers = {rank: hello["me"] for rank, hello in hellos.items()}
    differing = [*_mismatches(workers), *_divided_twice(workers, addresses), *_shared_exclusives(workers, addresses)]
    if differing:
        return _error(ValueError, "The workers differ:", differing)
    elsewhere = {rank: report["workdir"] for rank, report in reports.items() if report["workdir"]}
    if elsewhere:
        lines = [
            f"{worker_name(rank, addresses)}, on host {workers[rank]['host']}, at {path}"
            for rank, path in sorted(elsewhere.items())
        ]
        head = f"All workers must share the workdir of rank 0 (host {workers[0]['host']}). Not visible to:"
        return _error(FileNotFoundError, head, lines)
    members = [
        {"rank": rank, "address": address, "host": workers[rank]["host"], "pid": workers[rank]["pid"]}
        | workers[rank]["metadata"]
        for rank, address in enumerate(addresses)
    ]
    return {"members": members}


def decide_stop(requests: Mapping[int, str], addresses: Sequence[str]) -> dict[str, Any]:
    """The decision after stop requests; `requests`: rank -> reason, such as "SIGTERM"."""
    who = ", ".join(f"{reason} to {worker_name(rank, addresses)}" for rank, reason in sorted(requests.items()))
    return _error(interruption.StopError, f"stopped by {who} before training started", [])


def failure(failed: Mapping[int, str], addresses: Sequence[str], *, port_in_use: bool = False) -> dict[str, Any]:
    """The decision if workers cannot join; rank -> reason. `port_in_use`: see `PortInUseError`."""
    lines = _with_reasons(failed, addresses)
    return _error(PortInUseError if port_in_use else OSError, "A worker cannot join the run:", lines)


def missing(absent: Mapping[int, str], addresses: Sequence[str], seconds: float) -> dict[str, Any]:
    """The decision if workers are missing; rank -> reason."""
    lines = _with_reasons({rank: reason or "no answer" for rank, reason in absent.items()}, addresses)
    return _error(
        MissingWorkersError,
        f"{len(absent)} of {len(addresses) or 'the'} workers did not connect within {seconds:g} s:",
        lines,
        "Check their logs for errors. If they only start slowly, increase config.cluster.connect_seconds.",
    ) | {"missing": sorted(absent)}


def describe_awaited(absent: Mapping[int, str], size: int, addresses: Sequence[str], seconds: float) -> str:
    """Returns the line that says which workers are missing so far; rank -> reason, "" if it is not known yet."""
    which = (
        _ranks(sorted(absent)) if len(absent) > 1 and not addresses else "; ".join(_with_reasons(absent, addresses, 3))
    )
    return (
        f"waiting up to {seconds:g} s for {len(absent)} of {size} workers: {which}. A worker that is missing has not "
        "started yet, ended with an error, or cannot be reached"
    )


def not_arrived(arrivals: Iterable[int], size: int, seconds: float) -> dict[str, Any]:
    """The decision if workers without known addresses did not contact rank 0."""
    absent = sorted(set(range(1, size)) - set(arrivals))
    return _error(
        MissingWorkersError,
        f"{len(absent)} of {size} workers did not contact rank 0 within {seconds:g} s. Check their logs for errors. "
        "If they only start slowly, increase config.cluster.connect_seconds. Missing:",
        [_ranks(absent)],
    ) | {"missing": absent}


def no_chief(reasons: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """The decision of a worker that cannot connect to rank 0; possible address -> reason."""
    return _error(
        MissingWorkersError,
        f"Could not connect to rank 0 within {seconds:g} s:",
        [f"{address}: {reason}" for address, reason in reasons.items()],
        "If it runs on a different host, set TFDIST_CHIEF to that host on all workers. If it only starts slowly, "
        "increase config.cluster.connect_seconds.",
    ) | {"missing": [0]}


def same_rank(rank: int, workers: Sequence[dict]) -> str:
    """Returns the reason if two processes have the same rank."""
    where = " and ".join(f"host {worker['host']}, pid {worker['pid']}" for worker in workers)
    also = "and another process" if len(workers) == 1 else "both"
    return f"{where} {also} have rank {rank}. Each worker needs its own rank (in TF_CONFIG: task.index)"


def worker_name(rank: int, addresses: Sequence[str]) -> str:
    """Returns the name of a worker in messages."""
    return f"rank {rank} ({addresses[rank]})" if addresses else f"rank {rank}"


def _cut_off(hellos: Mapping[int, dict], reports: Mapping[int, dict], addresses: Sequence[str]) -> list[str]:
    lines = [
        f"{worker_name(rank, addresses)} cannot connect to {worker_name(int(other), addresses)} on host "
        f"{hellos[int(other)]['me']['host']}: {reason}"
        for rank, report in sorted(reports.items())
        for other, reason in report["unreached"].items()
        if reason  # Without a reason, there was no time for an attempt.
    ]
    silent = [rank for rank in range(len(addresses)) if rank not in reports]
    return lines or [
        f"{worker_name(rank, addresses)} has not reported which workers it can connect to" for rank in silent
    ]


def _mismatches(workers: Mapping[int, dict]) -> list[str]:
    lines = []
    for name in dict.fromkeys(name for worker in workers.values() for name in worker["must_match"]):
        values = {rank: worker["must_match"].get(name, "(absent)") for rank, worker in sorted(workers.items())}
        if name.startswith(FILE):
            values = {rank: value for rank, value in values.items() if value != "(absent)"}
        lines += _differing(name, values, workers)
    return lines


def _differing(name: str, values: Mapping[int, str], workers: Mapping[int, dict]) -> list[str]:
    ranks = collections.defaultdict(list)
    for rank, value in values.items():
        ranks[value].append(rank)
    texts = (f"{value!r} on {_ranks(found, workers)}" for value, found in ranks.items())
    return [f"{name}: {'; '.join(texts)}"] if len(ranks) > 1 else []


def _divided_twice(workers: Mapping[int, dict], addresses: Sequence[str]) -> list[str]:
    """Returns a line for each host whose workers divide GPUs that a wrapper has divided among them before."""
    hosts = collections.defaultdict(dict)
    for rank, worker in sorted(workers.items()):
        if divided := worker["metadata"].get("divided_gpus"):
            hosts[hostlist.split_address(addresses[rank])[0], worker["host"]][rank] = divided
    name = "CUDA_VISIBLE_DEVICES, whose GPUs tfdist divides among the workers of a host: give it the same value for all"
    return [line for values in hosts.values() for line in _differing(name, values, workers)]


def _shared_exclusives(workers: Mapping[int, dict], addresses: Sequence[str]) -> list[str]:
    # Machines with equal names have different addresses.
    holders = collections.defaultdict(list)
    for rank, worker in sorted(workers.items()):
        for name in worker["exclusive"]:
            holders[hostlist.split_address(addresses[rank])[0], worker["host"], name].append(rank)
    return [
        f"{name} on host {host} is used by {_ranks(ranks)}. Give each worker its own (Slurm: srun --gpus-per-node; "
        "otherwise CUDA_VISIBLE_DEVICES for each)"
        for (_, host, name), ranks in holders.items()
        if len(ranks) > 1
    ]


def _ranks(ranks: Sequence[int], workers: Mapping[int, dict] | None = None) -> str:
    """Writes ranks as `ranks 0-2, 5`, with their hosts if `workers` is given."""
    at = f" ({hostlist.compress_hostlist(workers[rank]['host'] for rank in ranks)})" if workers else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {hostlist.ranges(ranks)}{at}"


def _with_reasons(reasons: Mapping[int, str], addresses: Sequence[str], limit: int = _MAX_NAMED) -> list[str]:
    """Returns a line for each rank; of more than `limit` one for each reason, with the hosts in Slurm's notation."""
    ranks = sorted(reasons)
    if len(ranks) <= limit or not addresses:
        return [f"{worker_name(rank, addresses)}: {reasons[rank]}" for rank in ranks]
    by_reason = collections.defaultdict(list)
    for rank in ranks:
        by_reason[reasons[rank]].append(rank)
    hosts = [hostlist.split_address(address)[0] for address in addresses]
    return [
        f"{_ranks(found)} on {hostlist.compress_hostlist(hosts[rank] for rank in found)}: {reason}"
        for reason, found in by_reason.items()
    ]


def _error(error: type[Exception], head: str, lines: Sequence[str], advice: str = "") -> dict[str, Any]:
    if len(lines) > _MAX_NAMED:
        lines = [*lines[:_MAX_NAMED], f"and {len(lines) - _MAX_NAMED} more"]
    return {"error": error.__name__, "message": "\n  ".join([head, *lines]) + f"\n{advice}".rstrip()}
