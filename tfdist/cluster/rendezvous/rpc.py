"""Requests between workers before TensorFlow starts: one line of JSON each way over a short TCP connection."""

import asyncio
import contextlib
import errno
import json
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tfdist.cluster.discovery import hostlist

# Longest line, in bytes; the addresses of a thousand workers need less than one MB.
_LIMIT_BYTES = 2**24
# Time limit of one request, in seconds.
_ASK_SECONDS = 3.0
# Time limit of the server for one request, in seconds: a port scanner never sends one.
_ANSWER_SECONDS = 5.0
# Connections that may wait: all workers connect at the same time.
_BACKLOG = 1024


class UnreachableError(Exception):
    """A request failed; the text completes "rank 3 (n10:12345): ..."."""


def listen(port: int) -> socket.socket:
    """Opens `port` on all interfaces, for IPv6 and IPv4 where the machine has both.

    SO_REUSEADDR is set: connections of an earlier job in TIME_WAIT do not block the port.

    Raises:
        OSError: the port is in use, or may not be opened.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


def listen_at_best(port: int) -> socket.socket:
    """Opens `port`, or any free port if it is in use; see `listen`."""
    try:
        return listen(port)
    except OSError:
        return listen(0)


@contextlib.asynccontextmanager
async def serving(listener: socket.socket, answer: Callable[[dict, str], dict | None]):
    """Serves requests for the duration of an `async with` block, then closes `listener`.

    Args:
        answer: (request, IP address of the client) -> reply, or None to close the connection. Not called for anything
            but JSON objects.
    """
    conversations: set[asyncio.Task] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.add(asyncio.current_task())
        try:
            request = json.loads(await asyncio.wait_for(reader.readline(), _ANSWER_SECONDS))
            reply = answer(request, writer.get_extra_info("peername")[0]) if isinstance(request, dict) else None
            if reply is not None:
                writer.write(json.dumps(reply).encode() + b"\n")
                # The client closes first, so that this port does not enter TIME_WAIT.
                await asyncio.wait_for(reader.read(1), _ANSWER_SECONDS)
        except (OSError, ValueError, RecursionError, asyncio.TimeoutError):
            pass  # Not a worker, or one that died.
        finally:
            conversations.discard(asyncio.current_task())
            writer.close()

    server = await asyncio.start_server(converse, sock=listener, limit=_LIMIT_BYTES, backlog=_BACKLOG)
    try:
        yield
    finally:
        server.close()
        if conversations:
            await asyncio.wait(set(conversations), timeout=1.0)


async def ask(address: str, request: dict, seconds: float = _ASK_SECONDS) -> dict:
    """Sends one request to "host:port" and returns the reply.

    Raises:
        UnreachableError: no reply; the text is the reason.
    """
    try:
        return await asyncio.wait_for(_exchange(address, request), seconds)
    except asyncio.TimeoutError:
        raise UnreachableError(f"no answer within {seconds:g} s (blocked by a firewall?)") from None
    except socket.gaierror as error:
        raise UnreachableError(f"its host name cannot be resolved ({error.strerror})") from None
    except ConnectionRefusedError:
        raise UnreachableError("nothing is listening there (connection refused)") from None
    except OSError as error:
        raise UnreachableError(error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise UnreachableError("a program other than a tfdist worker is listening there") from None


async def _exchange(address: str, request: dict) -> dict:
    host, port = hostlist.split_address(address)
    found = await in_thread(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
    for index, (family, _, _, _, sockaddr) in enumerate(found):
        try:
            reader, writer = await asyncio.open_connection(*sockaddr[:2], family=family, limit=_LIMIT_BYTES)
            break
        except OSError:
            if index + 1 == len(found):
                raise
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        reply = json.loads(await reader.readline())
    finally:
        writer.close()
    if not isinstance(reply, dict):
        raise ValueError
    return reply


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


def run(coroutine: Coroutine) -> Any:
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
            thread.join(0.2)
    except BaseException:
        started.wait(1.0)
        with contextlib.suppress(RuntimeError):
            outcome["loop"].call_soon_threadsafe(outcome["cancel"])
        thread.join(2.0)
        raise
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]
