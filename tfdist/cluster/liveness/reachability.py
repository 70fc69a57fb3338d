"""Checks if other workers accept connections at their gRPC ports. Imports no TensorFlow."""

import asyncio
import os
from collections.abc import Callable, Mapping

from tfdist.cluster.discovery import hostlist

_MAX_CONCURRENT = 16
# Up to this many workers, each checks all others.
_FEW = 16


def partners(rank: int, size: int) -> list[int]:
    """Returns the workers to which worker `rank` of `size` checks the connection.

    In a large job these are six: those at the distances 1, n and n^2 in both directions of a ring of about n^3 workers.
    Every worker is checked by six others, so the number of all connections grows with the number of workers.
    """
    if size <= _FEW:
        return [other for other in range(size) if other != rank]
    distance = round(size ** (1 / 3))
    return sorted({(rank + sign * distance**power) % size for power in range(3) for sign in (1, -1)})


async def first_unreachable_pair(
    addresses: Mapping[int, str], seconds: float, is_waiting: Callable[[], bool]
) -> tuple[int, str]:
    """Returns the first worker that two checks in a row could not connect to, and the reason. Until then it runs.

    Args:
        addresses: rank -> "host:port".
        seconds: the pause between two checks, and the time limit of a connection.
        is_waiting: called before each check; False: skip it.
    """
    failed: dict[int, str] = {}
    while True:
        await asyncio.sleep(seconds)
        before, failed = failed, await unreachable(addresses, seconds) if is_waiting() else {}
        for rank in before.keys() & failed.keys():
            return rank, failed[rank]


async def unreachable(addresses: Mapping[int, str], seconds: float) -> dict[int, str]:
    """Connects to all addresses, rank -> "host:port", each in `seconds`; returns rank -> reason of those that fail."""
    found: dict[int, str] = {}
    gate = asyncio.Semaphore(_MAX_CONCURRENT)

    async def connect(rank: int, host: str, port: int) -> None:
        try:
            async with gate:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
            writer.close()
        except asyncio.TimeoutError:
            found[rank] = f"no answer within {seconds:g} s"
        except OSError as error:
            found[rank] = os.strerror(error.errno) if error.errno else str(error)

    await asyncio.gather(*(connect(rank, *hostlist.split_address(address)) for rank, address in addresses.items()))
    return found
