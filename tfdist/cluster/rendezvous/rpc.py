"""Requests between workers before TensorFlow starts: one signed message each way over a short TCP connection."""

import asyncio
import contextlib
import functools
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from tfdist.cluster.discovery import hostlist
from tfdist.cluster.wire import channel
from tfdist.cluster.wire.keys import Keys

# Time limit of one request, in seconds.
REQUEST_SECONDS = 3.0
# Seconds for which the addresses of a host are kept: each is looked up once.
_LOOKUP_SECONDS = 60.0

# Host name -> when it was looked up, and its IP addresses.
_looked_up: dict[str, tuple[float, list[str]]] = {}


class UnreachableError(Exception):
    """A request failed; the text completes "rank 3 (n10:12345): ..."."""


class NoAnswerError(UnreachableError):
    """The time limit has passed."""


class WrongPeerError(UnreachableError):
    """A worker of another job, another rank, or one with another key replied."""


async def request(
    address: str, message: Mapping[str, Any] | bytes, keys: Keys, seconds: float = REQUEST_SECONDS
) -> dict[str, Any]:
    """Sends a message to "host:port" and returns the reply.

    Raises:
        WrongPeerError: the worker there has another key.
        NoAnswerError: no reply within `seconds`.
        UnreachableError: no reply; the text is the reason.
    """
    try:
        return await _exchange(address, functools.partial(channel.request, keys=keys, message=message), seconds)
    except asyncio.TimeoutError:
        raise NoAnswerError(f"no answer within {seconds:g} s (blocked by a firewall?)") from None
    except socket.gaierror as error:
        raise UnreachableError(f"its host name cannot be resolved ({error.strerror})") from None
    except ConnectionRefusedError:
        raise UnreachableError("nothing is listening there (connection refused)") from None
    except OSError as error:
        raise UnreachableError(error.strerror or str(error)) from None
    except channel.RefusedError:
        raise WrongPeerError(
            "a worker with another key is listening there (workers of a job share TFDIST_KEY, the workdir or the home "
            "directory)"
        ) from None
    except (ValueError, EOFError):
        raise UnreachableError("a program other than a tfdist worker is listening there") from None


async def _exchange(address: str, exchange: Callable[[tuple[str, int]], Awaitable[Any]], seconds: float) -> Any:
    """Calls `exchange` with the addresses of a host, one after another, until one answers, for `seconds` in all.

    Never one `asyncio.wait_for` in another: before Python 3.12, the outer one loses the error of an inner one that ends
    while it is cancelled, and asyncio prints it.
    """
    host, port = hostlist.split_address(address)
    limit = time.monotonic() + seconds
    found = await asyncio.wait_for(_addresses(host), seconds)
    left = limit - time.monotonic()
    for ip in found:
        try:
            return await asyncio.wait_for(exchange((ip, port)), left / len(found))
        except (OSError, asyncio.TimeoutError):
            if ip == found[-1]:
                raise
    raise UnreachableError("its host name has no address")


async def _addresses(host: str) -> list[str]:
    """Returns the IP addresses of a host; raises OSError if its name cannot be resolved."""
    when, known = _looked_up.get(host, (0.0, []))
    if known and time.monotonic() - when < _LOOKUP_SECONDS:
        return known
    found = await in_thread(socket.getaddrinfo, host, None, 0, socket.SOCK_STREAM)
    known = list(dict.fromkeys(sockaddr[0] for *_, sockaddr in found))
    _looked_up[host] = time.monotonic(), known
    return known


def in_thread(function: Callable[..., Any], *args: Any) -> asyncio.Future:
    """Calls a function that may block; unlike with asyncio's executor, Python does not wait for it at exit."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        if not future.done():
            future.set_exception(error) if error else future.set_result(result)

    def work() -> None:
        try:
            outcome = (function(*args), None)
        except Exception as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True).start()
    return future


def wait_for(coroutine: Coroutine) -> Any:
    """Runs a coroutine in a thread, and returns its result or raises its exception.

    The calling thread wakes up several times a second, so that Python's signal handlers run. It may already run an
    event loop, as in a notebook.
    """
    outcome: dict[str, Any] = {}
    started = threading.Event()

    async def main() -> Any:
        outcome["cancel"] = asyncio.current_task().cancel
        outcome["loop"] = asyncio.get_running_loop()
        started.set()
        return await coroutine

    def work() -> None:
        try:
            outcome["result"] = asyncio.run(main())
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.5)
    except BaseException:
        started.wait(1.0)
        with contextlib.suppress(RuntimeError):
            outcome["loop"].call_soon_threadsafe(outcome["cancel"])
        thread.join(2.0)
        raise
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
