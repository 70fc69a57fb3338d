"""Signed messages over one TCP connection: authenticated, protected against replay, bounded in size.

The server first sends a random number (nonce), and the client's first message contains another one. Each message is a
header line and a body, a JSON object:

    LENGTH SHA256-OF-BODY SIGNATURE\n      (the first one of a client: CLIENT-NONCE LENGTH ...)

The signature (HMAC-SHA256) covers both nonces, the direction, the number of the message, and the length and hash of the
body: a message cannot be changed, replayed in this or another connection, or sent back. The receiver checks the header,
at most `_HEADER_BYTES`, before it reads the body, and the hash before it parses the body. Imports no TensorFlow.
"""

import asyncio
import dataclasses
import functools
import hashlib
import json
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.cluster.control.keys import Key

# The version is increased whenever the fields of the messages change.
_PROTOCOL, _REFUSED = b"tfdist/3", b"refused\n"
_GREETING = re.compile(rb"%s ([0-9a-f]{32})\n" % _PROTOCOL)
_NONCE_BYTES = 16
_HEADER_BYTES = 512
# Longest body, in bytes; the addresses of a thousand workers need less than one MB.
_BODY_BYTES = 2**24
_HEADER = re.compile(rb"(?:([0-9a-f]{32}) )?(\d{1,8}) ([0-9a-f]{64}) ([0-9a-f]{64})\n")


class RefusedError(ValueError):
    """The server has another key."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Channel(asyncio.Protocol):
    """One end of a connection."""

    key: Key
    is_server: bool
    # Called as soon as the first header authenticates the client.
    on_authenticated: Callable[[], object] = lambda: None
    # Called with each message; None: `messages` keeps it for `receive`.
    handle: Callable[[dict[str, Any]], Any] | None = None
    transport: asyncio.Transport | None = None
    server_nonce: bytes = b""
    client_nonce: bytes = b""
    sent: int = 0
    received: int = 0
    # Received bytes that are not parsed yet; length and hash of the body that follows the last header.
    data: bytearray = dataclasses.field(default_factory=bytearray)
    body: tuple[int, bytes] | None = None
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    # Why nothing more is read; None: messages are still read.
    error: Exception | None = None
    # The future that `wait` awaits; it is done when a message or an error arrives.
    changed: asyncio.Future | None = None

    @property
    def peer(self) -> str:
        """The IP address of the other end."""
        return self.transport.get_extra_info("peername")[0]

    def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Sends a message: a JSON object, or its encoding. Never blocks or raises: the reader notices a closed end."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        length, digest = str(len(body)).encode(), hashlib.sha256(body).hexdigest().encode()
        signature = self.key.sign(self._to_sign(self.is_server, self.sent, length, digest))
        nonce = b"" if self.is_server or self.sent else self.client_nonce + b" "
        self.sent += 1
        if not self.transport.is_closing():
            self.transport.write(nonce + b" ".join((length, digest, signature)) + b"\n" + body)

    async def receive(self) -> dict[str, Any]:
        """Returns the next message.

        Raises:
            RefusedError: this end is a client, and the server has another key.
            ValueError: not a message with a valid signature, or its body is not a JSON object.
            EOFError: the connection is closed.
            OSError: it is broken.
        """
        await self.wait(lambda: self.messages)
        return self.messages.pop(0)

    async def receive_all(self, handle: Callable[[dict[str, Any]], Any]) -> None:
        """Calls `handle` with each message as soon as it arrives, until the connection ends; raises as `receive`."""
        while self.messages:
            handle(self.messages.pop(0))
        self.handle = handle
        await self.wait(lambda: False)

    async def wait(self, condition: Callable[[], object]) -> None:
        """Waits until arriving data makes `condition` true; raises as `receive`."""
        while not condition():
            if self.error is not None:
                raise self.error
            self.changed = asyncio.get_running_loop().create_future()
            await self.changed

    def close(self) -> None:
        """Closes the connection after sending what is pending."""
        self.transport.close()

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Called by asyncio; a server sends its nonce."""
        self.transport = transport
        if self.is_server:
            self.server_nonce = _nonce()
            transport.write(b"%s %s\n" % (_PROTOCOL, self.server_nonce))

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; handles the complete messages."""
        self.data += data
        try:
            while self.error is None and self._read():
                pass
        except ValueError as error:
            self.connection_lost(error)
            self.transport.close()
        self._note_change()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio; ends `receive` with the first error."""
        self.error = self.error or exc or EOFError()
        self._note_change()

    def _note_change(self) -> None:
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)

    def _read(self) -> bool:
        """Parses a line or a body in `data`; returns whether it was complete."""
        if self.body is not None:
            length, digest = self.body
            if len(self.data) < length:
                return False
            self._take_message(self._take(length), digest)
            return True
        end = self.data.find(b"\n", 0, _HEADER_BYTES) + 1
        if end:
            line = self._take(end)
            self._take_header(line) if self.server_nonce else self._take_greeting(line)
        elif len(self.data) >= _HEADER_BYTES:
            raise ValueError("not a header")
        return end > 0

    def _take(self, size: int) -> bytes:
        taken = bytes(self.data[:size])
        del self.data[:size]
        return taken

    def _take_greeting(self, line: bytes) -> None:
        match = _GREETING.fullmatch(line)
        if match is None:
            raise ValueError("not a tfdist worker")
        self.server_nonce = match[1]

    def _take_header(self, line: bytes) -> None:
        if line == _REFUSED and not self.is_server:
            raise RefusedError
        match = _HEADER.fullmatch(line)
        if match is None or (match[1] is not None) != (self.is_server and self.received == 0):
            raise ValueError("not a header")
        self.client_nonce = match[1] or self.client_nonce
        length, digest, signature = match[2], match[3], match[4]
        if not self.key.verify(self._to_sign(not self.is_server, self.received, length, digest), signature):
            if self.is_server:
                self.transport.write(_REFUSED)
            raise ValueError("signed with another key")
        self.on_authenticated()
        if int(length) > _BODY_BYTES:
            raise ValueError("too long")
        self.body = int(length), digest

    def _take_message(self, body: bytes, digest: bytes) -> None:
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ValueError("changed")
        self.body = None
        self.received += 1
        try:
            message = json.loads(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")
        (self.handle or self.messages.append)(message)

    def _to_sign(self, by_server: bool, number: int, length: bytes, digest: bytes) -> bytes:
        parts = (b"server" if by_server else b"client", self.server_nonce, self.client_nonce, str(number).encode())
        return b" ".join((_PROTOCOL, *parts, length, digest))


async def accept(connection: socket.socket, key: Key, on_authenticated: Callable[[], object]) -> Channel:
    """Returns the server's end of an accepted connection; `on_authenticated`: see `Channel`."""
    factory = functools.partial(Channel, key=key, is_server=True, on_authenticated=on_authenticated)
    return (await asyncio.get_running_loop().connect_accepted_socket(factory, connection))[1]


async def connect(sockaddr: tuple[str, int], key: Key) -> Channel:
    """Connects to a server, and returns the client's end.

    Args:
        sockaddr: IP address or host name, and port.

    Raises:
        OSError: no connection.
        ValueError, EOFError: a program other than a tfdist worker is listening there.
    """
    factory = functools.partial(Channel, key=key, is_server=False, client_nonce=_nonce())
    # Happy eyeballs: the next address of a host name is tried before the first one has failed.
    connecting = asyncio.get_running_loop().create_connection(factory, *sockaddr, happy_eyeballs_delay=0.25)
    channel = (await connecting)[1]
    try:
        await channel.wait(lambda: channel.server_nonce)
    except BaseException:
        channel.close()
        raise
    return channel


def _nonce() -> bytes:
    return secrets.token_hex(_NONCE_BYTES).encode()
