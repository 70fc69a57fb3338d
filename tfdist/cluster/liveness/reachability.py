"""Checks if other workers accept connections at their gRPC ports. Imports no TensorFlow."""

import asyncio
import os
from collections.abc import Callable, Mapping

from tfdist.cluster.discovery import hostlist

_MAX_CONCURRENT = 16


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
    """Connects to all addresses; returns rank -> reason of those that fail.

    Args:
        addresses: rank -> "host:port".
        seconds: time limit of each connection.
    """
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
