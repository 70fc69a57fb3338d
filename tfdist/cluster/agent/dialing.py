"""Connects to other agents, and says in words why that fails. Imports only the standard library."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tfdist.cluster.agent import channel as channel_lib
from tfdist.cluster.agent import listener
from tfdist.cluster.agent.channel import Channel
from tfdist.cluster.agent.keys import Keys
from tfdist.cluster.discovery import hostlist

# Time limit of a connection and of the first reply, in seconds.
SECONDS = 3.0
# Connections at once of one agent.
_AT_ONCE = 16
# Up to this many workers, each tries the addresses of all others.
_FEW = 16


class UnreachableError(Exception):
    """No agent replied; the text completes "rank 3 (n10:12345): ..."."""


class NoAnswerError(UnreachableError):
    """The time limit has passed."""


class WrongPeerError(UnreachableError):
    """A worker of another job, another rank, or one with another key replied."""


async def call(
    address: str, keys: Keys, message: Mapping[str, Any], seconds: float = SECONDS
) -> tuple[Channel, dict[str, Any]]:
    """Connects to the agent at "host:port" and sends a message; returns the channel and the reply.

    Raises:
        WrongPeerError: the agent there has another key.
        NoAnswerError: no reply within `seconds`.
        UnreachableError: no reply; the text is the reason.
    """

    async def converse(ip: str, port: int) -> tuple[Channel, dict[str, Any]]:
        channel = await channel_lib.connect((ip, port), keys)
        try:
            channel.send(message)
            return channel, await channel.receive()
        except BaseException:
            channel.writer.close()
            raise

    return await _in_words(_at_any(address, converse), seconds)


async def request(address: str, keys: Keys, message: Mapping[str, Any], seconds: float = SECONDS) -> dict[str, Any]:
    """As `call`; returns the reply, and closes the connection."""
    channel, reply = await call(address, keys, message, seconds)
    channel.writer.close()
    return reply


async def _in_words(result: Awaitable[Any], seconds: float) -> Any:
    try:
        return await asyncio.wait_for(result, seconds)
    except asyncio.TimeoutError:
        raise NoAnswerError(f"no answer within {seconds:g} s (blocked by a firewall?)") from None
    except socket.gaierror as error:
        raise UnreachableError(f"its host name cannot be resolved ({error.strerror})") from None
    except ConnectionRefusedError:
        raise UnreachableError("nothing is listening there (connection refused)") from None
    except OSError as error:
        raise UnreachableError(error.strerror or str(error)) from None
    except channel_lib.RefusedError:
        raise WrongPeerError(
            "a worker with another key is listening there (workers of a job share TFDIST_KEY, the workdir or the home "
            "directory)"
        ) from None
    except (ValueError, EOFError):
        raise UnreachableError("a program other than a tfdist worker is listening there") from None


async def _at_any(address: str, converse: Callable[[str, int], Awaitable[Any]]) -> Any:
    """Calls `converse` with each IP address of the host of "host:port" until one connects."""
    host, port = hostlist.split_address(address)
    found = listener.looked_up.get(host) or await asyncio.to_thread(listener.look_up, host)
    ips = [ip for _, ip in found]
    for ip in ips:
        try:
            return await converse(ip, port)
        except OSError:
            if ip == ips[-1]:
                raise
    raise UnreachableError("its host name has no address")


async def refused(addresses: Mapping[int, str], seconds: float) -> dict[int, str]:
    """Connects to the servers of TensorFlow; returns rank -> reason of those that fail.

    Args:
        addresses: rank -> "host:port".
        seconds: time limit of each connection.
    """
    found: dict[int, str] = {}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def connect(ip: str, port: int) -> None:
        (await asyncio.open_connection(ip, port))[1].close()

    async def check(rank: int, address: str) -> None:
        try:
            async with gate:
                await asyncio.wait_for(_at_any(address, connect), seconds)
        except asyncio.TimeoutError:
            found[rank] = f"no answer within {seconds:g} s"
        except OSError as error:
            known = error.errno and not isinstance(error, socket.gaierror)
            found[rank] = os.strerror(error.errno) if known else str(error)

    await asyncio.gather(*(check(rank, address) for rank, address in addresses.items()))
    return found


def partners(rank: int, size: int) -> list[int]:
    """Returns the workers whose addresses worker `rank` of `size` tries.

    In a large job these are the workers at the distances 1, 2, 4, ... in both directions of a ring: every worker is
    checked by about 2 log2(size) others, and not by all.
    """
    if size <= _FEW:
        return [other for other in range(size) if other != rank]
    distances = [2**power for power in range(size.bit_length()) if 2**power < size]
    return sorted({(rank + sign * distance) % size for distance in distances for sign in (1, -1)} - {rank})
