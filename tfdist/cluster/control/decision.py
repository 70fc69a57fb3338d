"""Rank 0's decision from the workers' reports, and its messages; see rendezvous.py. Pure functions, no TensorFlow.

A decision is a JSON object: {"members": [...]}, or {"error": name of the exception, "message": text}.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist


class MissingWorkersError(TimeoutError):
    """Workers did not connect: they have not started, or have already ended. Restarting all workers may help."""


class PortInUseError(OSError):
    """The port that tfdist chose for a worker is in use. Restarting all workers may help."""

    exit_code = interruption.EXIT_PEER_LOST


_TYPES = (interruption.StopError, MissingWorkersError, ValueError, FileNotFoundError, PortInUseError, OSError)
ERRORS = {error.__name__: error for error in _TYPES}
# Prefix of names in `must_match` that some workers may lack: files that a worker has imported.
FILE = "file "
# Maximum number of lines in a message.
_MAX_NAMED = 20
_ADVICE = "Check the log of each for errors. If it only starts slowly, increase config.cluster.connect_seconds."


def members_or_raise(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the decision's members, or raises its error."""
    if "error" in decision:
        raise ERRORS[decision["error"]](decision["message"])
    return decision["members"]


def decide(workers: Mapping[int, dict[str, Any]], spec_addresses: Sequence[str], size: int, seconds: float) -> dict:
    """Makes the decision. Called when all reports are complete, a worker cannot join or must stop, or time is up.

    Args:
        workers: rank -> that worker's report: host, pid, metadata, must_match, exclusive, address, and
            failed: why it cannot join, else "";
            port_in_use: whether it cannot join because its port is in use;
            stopped: the reason of its stop request, else "";
            unseen: its path of the workdir if it does not see rank 0's file there, else ""; None: not known yet.
        spec_addresses: "host:port" of each worker in rank order; empty: not known in advance.
        size: the number of workers.
        seconds: the time limit, for the message.
    """
    workers = dict(sorted(workers.items()))
    complete = len(workers) == size
    addresses = spec_addresses or ([worker["address"] for worker in workers.values()] if complete else [])
    if stopped := {rank: worker["stopped"] for rank, worker in workers.items() if worker["stopped"]}:
        return stop(stopped, addresses)
    if failed := {rank: worker["failed"] for rank, worker in workers.items() if worker["failed"]}:
        return failure(failed, addresses, port_in_use=all(workers[rank]["port_in_use"] for rank in failed))
    if absent := [rank for rank in range(size) if rank not in workers]:
        return missing(absent, addresses, size, seconds)
    differing = [*_mismatches(workers), *_shared_resources(workers, addresses)]
    if differing:
        return _error(ValueError, "The workers differ:", differing)
    elsewhere = [
        f"{worker_name(rank, addresses)}, on host {worker['host']}, at {worker['unseen'] or 'its workdir'}"
        for rank, worker in workers.items()
        if worker["unseen"] != ""
    ]
    if elsewhere:
        head = f"All workers must share the workdir of rank 0 (host {workers[0]['host']}). Not visible to:"
        return _error(FileNotFoundError, head, elsewhere)
    members = [
        {"rank": rank, "address": address, "host": workers[rank]["host"], "pid": workers[rank]["pid"]}
        | workers[rank]["metadata"]
        for rank, address in enumerate(addresses)
    ]
    return {"members": members}


def stop(requests: Mapping[int, str], addresses: Sequence[str]) -> dict[str, Any]:
    """The decision after stop requests; `requests`: rank -> reason, such as "SIGTERM"."""
    who = ", ".join(f"{reason} to {worker_name(rank, addresses)}" for rank, reason in requests.items())
    return _error(interruption.StopError, f"stopped by {who} before training started", [])


def failure(failed: Mapping[int, str], addresses: Sequence[str], *, port_in_use: bool = False) -> dict[str, Any]:
    """The decision if workers cannot join; `failed`: rank -> reason. `port_in_use`: see `PortInUseError`."""
    lines = [f"{worker_name(rank, addresses)}: {reason}" for rank, reason in failed.items()]
    return _error(PortInUseError if port_in_use else OSError, "A worker cannot join the run:", lines)


def missing(absent: Sequence[int], addresses: Sequence[str], size: int, seconds: float) -> dict[str, Any]:
    """The decision if workers have not contacted rank 0 in time."""
    head = f"{len(absent)} of {size} workers did not connect to rank 0 within {seconds:g} s:"
    return _error(MissingWorkersError, head, _names(absent, addresses), _ADVICE)


def no_chief(reasons: Mapping[str, str], seconds: float) -> dict[str, Any]:
    """The decision of a worker that cannot connect to rank 0; `reasons`: address tried -> reason."""
    lines = [f"rank 0 ({address}): {reason}" for address, reason in reasons.items()]
    advice = f"{_ADVICE} If rank 0 runs on a different host, set TFDIST_CHIEF to that host on all workers."
    head = f"Could not connect to rank 0 within {seconds:g} s:"
    return _error(MissingWorkersError, head, lines, advice)


def describe_awaited(absent: Sequence[int], addresses: Sequence[str], size: int, seconds: float) -> str:
    """Returns rank 0's line about the workers that are still missing."""
    named = addresses if len(absent) <= 3 else ()
    which = "; ".join(_names(absent, named))
    return (
        f"waiting up to {seconds:g} s for {len(absent)} of {size} workers: {which}. A worker that is missing has not "
        "started yet, ended with an error, or cannot connect to rank 0"
    )


def same_rank(rank: int, workers: Sequence[Mapping[str, Any]]) -> str:
    """Returns why a worker cannot join if `workers`, two processes, have the same rank."""
    where = " and ".join(f"host {worker['host']}, pid {worker['pid']}" for worker in workers)
    return f"{where} both have rank {rank}. Each worker needs its own rank (in TF_CONFIG: task.index)"


def worker_name(rank: int, addresses: Sequence[str]) -> str:
    """Returns the name of a worker in messages."""
    return f"rank {rank} ({addresses[rank]})" if addresses else f"rank {rank}"


def _names(ranks: Sequence[int], addresses: Sequence[str]) -> list[str]:
    """Returns a line per rank; one line with Slurm's notation if there are many ranks or no addresses."""
    if addresses and len(ranks) <= _MAX_NAMED:
        return [worker_name(rank, addresses) for rank in ranks]
    hosts = [hostlist.split_address(addresses[rank])[0] for rank in ranks] if addresses else []
    return [_ranks(ranks) + (f" on {hostlist.compress_hostlist(hosts)}" if hosts else "")]


def _mismatches(workers: Mapping[int, dict]) -> list[str]:
    lines = []
    for name in dict.fromkeys(name for worker in workers.values() for name in worker["must_match"]):
        ranks = collections.defaultdict(list)
        for rank, worker in workers.items():
            value = worker["must_match"].get(name, "(absent)")
            if value != "(absent)" or not name.startswith(FILE):
                ranks[value].append(rank)
        if len(ranks) > 1:
            texts = (f"{value!r} on {_ranks(found, workers)}" for value, found in ranks.items())
            lines.append(f"{name}: {'; '.join(texts)}")
    return lines


def _shared_resources(workers: Mapping[int, dict], addresses: Sequence[str]) -> list[str]:
    # The address is in the key, because different machines may have the same host name.
    holders = collections.defaultdict(list)
    for rank, worker in workers.items():
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


def _error(error: type[Exception], head: str, lines: Sequence[str], advice: str = "") -> dict[str, Any]:
    if len(lines) > _MAX_NAMED:
        lines = [*lines[:_MAX_NAMED], f"and {len(lines) - _MAX_NAMED} more"]
    return {"error": error.__name__, "message": "\n  ".join([head, *lines]) + f"\n{advice}".rstrip()}
