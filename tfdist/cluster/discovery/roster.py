"""The list of a run's workers for the log and `environment.json`. Imports no TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.discovery import hostlist

# Maximum number of workers in the log; environment.json has all.
_MAX_WORKERS = 16


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All workers in rank order, and notes for the user."""

    # As returned by `rendezvous.rendezvous`, with the `devices` of each, such as "2 GPUs".
    workers: Sequence[Mapping[str, Any]] = ()
    # How they communicate; not shown if there is only one worker.
    communication: str = ""
    # Warnings about the environment, such as a forgotten srun.
    notes: tuple[str, ...] = ()
    # Notes for metrics.jsonl and environment.json; the console of a run leaves them out.
    details: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns one line per worker, then the notes."""
        return [*map(self._line, range(len(self.workers))), *self.notes, *self.details]

    def short_lines(self, verbose: bool) -> list[str]:
        """Returns the lines for the log; if there are many workers, the first ones and the hosts of the others."""
        lines = [self._line(rank) for rank in range(min(len(self.workers), _MAX_WORKERS))]
        if others := [worker["host"] for worker in self.workers[_MAX_WORKERS:]]:
            lines.append(f"and {len(others):,} more on {hostlist.compress_hostlist(others)}")
        return [*lines, *self.notes, *(self.details if verbose else ())]

    def _line(self, rank: int) -> str:
        worker, size = self.workers[rank], len(self.workers)
        process = f"host {worker['host']}, pid {worker['pid']}, {worker['devices']}"
        if size == 1:
            return f"1 worker: {process}"
        name = f"worker {rank} of {size}{' (chief)' if rank == 0 else ''}"
        return f"{name}: {process}, {self.communication} at {worker['address']}"
