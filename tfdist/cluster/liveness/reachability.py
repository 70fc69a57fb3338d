"""Whether other workers can be reached at the ports that TensorFlow talks through. Imports no TensorFlow."""

import asyncio
import os
from collections.abc import Callable, Mapping

from tfdist.cluster.discovery import hostlist

# How many are called at a time.
_AT_ONCE = 16


async def first_unreachable_pair(
    addresses: Mapping[int, str], seconds: float, waits: Callable[[], bool]
) -> tuple[int, str]:
    """Returns the first worker that could not be reached twice in a row, and why; never, where all can.

    Args:
        addresses: rank -> "host:port".
        seconds: the pause between two rounds of calls, and how long a call may take.
        waits: whether there is a reason to look.
    """
    cut: dict[int, str] = {}
    while True:
        await asyncio.sleep(seconds)
        before, cut = cut, await unreachable(addresses, seconds) if waits() else {}
        for rank in before.keys() & cut.keys():
            return rank, cut[rank]


async def unreachable(addresses: Mapping[int, str], seconds: float) -> dict[int, str]:
    """Calls all addresses; returns rank -> reason for those at which nobody answers.

    Args:
        addresses: rank -> "host:port".
        seconds: how long each call may take.
    """
    found: dict[int, str] = {}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def call(rank: int, host: str, port: int) -> None:
        try:
            async with gate:
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), seconds)
            writer.close()
        except asyncio.TimeoutError:
            found[rank] = f"no answer within {seconds:g} s"
        except OSError as error:
            found[rank] = os.strerror(error.errno) if error.errno else str(error)

    await asyncio.gather(*(call(rank, *hostlist.split_address(address)) for rank, address in addresses.items()))
    return found
