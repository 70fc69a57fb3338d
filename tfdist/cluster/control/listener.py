"""Opens ports and serves connections: unauthenticated clients can exhaust neither file descriptors nor memory."""

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tfdist.cluster.control import wire
from tfdist.cluster.control.keys import Key
from tfdist.cluster.control.wire import Channel

# Backlog of pending connections: all workers connect at the same time.
_BACKLOG = 1024
# Maximum number of connections of unauthenticated clients; if there are more, the oldest is closed.
_MAX_UNAUTHENTICATED = 256
# Seconds in which a client must send its first message.
_AUTHENTICATION_SECONDS = 5.0
# Pause after an error of accept, such as too many open files.
_PAUSE_SECONDS = 0.1
# The soft limit of file descriptors is raised at most to this: some programs loop over all numbers below it.
_DESCRIPTORS = 65_536


def raise_descriptor_limit() -> None:
    """Raises the soft limit of file descriptors: rank 0 needs one for each worker, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def listen(port: int) -> socket.socket:
    """Opens `port` on all interfaces, as TensorFlow will, for IPv6 and IPv4 where the machine has both.

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


@contextlib.asynccontextmanager
async def serving(
    listener: socket.socket, key: Key, handle: Callable[[Channel, dict[str, Any]], Awaitable[None]]
) -> AsyncIterator[None]:
    """Serves connections for the duration of an `async with` block, then closes `listener`.

    Args:
        handle: called with the channel and the first message of each authenticated client. It may raise OSError,
            ValueError and EOFError, which close the connection.
    """
    tasks: set[asyncio.Task] = set()
    unauthenticated: dict[asyncio.Task, None] = {}  # Oldest first.

    async def converse(connection: socket.socket) -> None:
        try:
            channel = await wire.accept(connection, key)
        except OSError:
            connection.close()
            return
        try:
            first = await asyncio.wait_for(channel.receive(), _AUTHENTICATION_SECONDS)
            unauthenticated.pop(asyncio.current_task(), None)
            await handle(channel, first)
        except (OSError, ValueError, EOFError, KeyError, TypeError, asyncio.TimeoutError):
            pass  # Not a worker, a worker of another release, or one that died.
        finally:
            channel.close()

    async def accept_all() -> None:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:
                _close_oldest(unauthenticated)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(unauthenticated) >= _MAX_UNAUTHENTICATED:
                _close_oldest(unauthenticated)
            task = asyncio.ensure_future(converse(connection))
            tasks.add(task)
            unauthenticated[task] = None
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda done: unauthenticated.pop(done, None))
            await asyncio.sleep(0)  # While connections are pending, `sock_accept` does not yield.

    listener.setblocking(False)
    accepting = asyncio.ensure_future(accept_all())
    try:
        yield
    finally:
        accepting.cancel()
        await asyncio.wait([accepting])
        listener.close()
        for task in unauthenticated:
            task.cancel()
        if tasks:
            await asyncio.wait(set(tasks), timeout=1.0)


def _close_oldest(unauthenticated: dict[asyncio.Task, None]) -> None:
    if unauthenticated:
        oldest = next(iter(unauthenticated))
        del unauthenticated[oldest]
        oldest.cancel()
