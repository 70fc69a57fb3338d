"""How the workers divide their time between input, computation and communication. Imports no TensorFlow."""

from collections.abc import Sequence

# (input, compute, communication) of one worker, each 0 to 1.
Shares = tuple[float, float, float]
# With more workers than this, a console line shows only two of them.
_MAX_WORKERS_SHOWN = 4
# With more workers than this, metrics.jsonl has only three of them.
_MAX_WORKERS_RECORDED = 16


def slowest(worker_shares: Sequence[Shares]) -> int:
    """Returns the rank of the worker that the others wait for: the one with the smallest communication share."""
    return min(range(len(worker_shares)), key=lambda rank: worker_shares[rank][2])


def select_recorded(worker_shares: Sequence[Shares]) -> list[list[float]]:
    """Returns the shares of the workers, given in rank order, for metrics.jsonl.

    With more than `_MAX_WORKERS_RECORDED` workers: those of three workers, with the smallest, the median and the
    largest communication share.
    """
    if len(worker_shares) > _MAX_WORKERS_RECORDED:
        ordered = sorted(worker_shares, key=lambda shares: shares[2])
        worker_shares = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    return [[round(part, 4) for part in shares] for shares in worker_shares]


def describe(worker_shares: Sequence[Shares]) -> list[str]:
    """Returns the shares of the workers, given in rank order, as the parts of a console line.

    With more than `_MAX_WORKERS_SHOWN` workers: those of the slowest worker and of the one that waits longest for it.
    """

    def text(rank: int) -> str:
        waiting, computing, communicating = worker_shares[rank]
        return f"worker {rank}: {waiting:.0%} input, {computing:.0%} compute, {communicating:.0%} communication"

    last = slowest(worker_shares)
    shown = range(len(worker_shares))
    if len(worker_shares) > _MAX_WORKERS_SHOWN:
        shown = sorted({last, max(shown, key=lambda rank: worker_shares[rank][2])})
    return [*map(text, shown), f"slowest: worker {last}"]
