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
class Channel:
    """One end of a connection; made by `connect` and `accept`."""

    key: Key
    is_server: bool
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_nonce: bytes
    # A server learns it from the first message.
    client_nonce: bytes = b""
    sent: int = 0
    received: int = 0
    # Length and hash of the body that follows the last header: a task may be cancelled between the two.
    body: tuple[int, bytes] | None = None

    def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Sends a message: a JSON object, or its encoding. Never blocks or raises: `receive` notices a closed end."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        length, digest = str(len(body)).encode(), hashlib.sha256(body).hexdigest().encode()
        signature = self.key.sign(self._to_sign(self.is_server, self.sent, length, digest))
        nonce = b"" if self.is_server or self.sent else self.client_nonce + b" "
        self.sent += 1
        if not self.writer.is_closing():
            self.writer.write(nonce + b" ".join((length, digest, signature)) + b"\n" + body)

    async def receive(self) -> dict[str, Any]:
        """Returns the next message. After an error, only `close` may be called.

        Raises:
            RefusedError: this end is a client, and the server has another key.
            ValueError: not a message with a valid signature, or its body is not a JSON object.
            EOFError: the connection is closed.
            OSError: it is broken.
        """
        if self.body is None:
            self.body = self._check_header(await _read_line(self.reader))
        length, digest = self.body
        body = await self.reader.readexactly(length)
        self.body = None
        self.received += 1
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ValueError("changed")
        try:
            message = json.loads(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")
        return message

    async def receive_all(self, handle: Callable[[dict[str, Any]], Any]) -> None:
        """Calls `handle` with each message until the connection ends; raises as `receive`."""
        while True:
            handle(await self.receive())

    def close(self) -> None:
        """Closes the connection after sending what is pending."""
        self.writer.close()

    def _check_header(self, line: bytes) -> tuple[int, bytes]:
        """Returns length and hash of the body that follows this header; raises as `receive`."""
        if line == _REFUSED and not self.is_server:
            raise RefusedError
        match = _HEADER.fullmatch(line)
        if match is None or (match[1] is not None) != (self.is_server and self.received == 0):
            raise ValueError("not a header")
        self.client_nonce = match[1] or self.client_nonce
        length, digest, signature = match[2], match[3], match[4]
        if not self.key.verify(self._to_sign(not self.is_server, self.received, length, digest), signature):
            if self.is_server:
                self.writer.write(_REFUSED)
            raise ValueError("signed with another key")
        if int(length) > _BODY_BYTES:
            raise ValueError("too long")
        return int(length), digest

    def _to_sign(self, by_server: bool, number: int, length: bytes, digest: bytes) -> bytes:
        parts = (b"server" if by_server else b"client", self.server_nonce, self.client_nonce, str(number).encode())
        return b" ".join((_PROTOCOL, *parts, length, digest))


async def accept(connection: socket.socket, key: Key) -> Channel:
    """Returns the server's end of an accepted connection, after sending its nonce."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_HEADER_BYTES)
    channel = Channel(key=key, is_server=True, reader=reader, writer=writer, server_nonce=_nonce())
    writer.write(b"%s %s\n" % (_PROTOCOL, channel.server_nonce))
    return channel


async def connect(sockaddr: tuple[str, int], key: Key) -> Channel:
    """Connects to a server, and returns the client's end.

    Args:
        sockaddr: IP address or host name, and port.

    Raises:
        OSError: no connection.
        ValueError, EOFError: a program other than a tfdist worker is listening there.
    """
    # Happy eyeballs: the next address of a host name is tried before the first one has failed.
    reader, writer = await asyncio.open_connection(*sockaddr, limit=_HEADER_BYTES, happy_eyeballs_delay=0.25)
    try:
        greeting = _GREETING.fullmatch(await _read_line(reader))
        if greeting is None:
            raise ValueError("not a tfdist worker")
    except BaseException:
        writer.close()
        raise
    return Channel(
        key=key, is_server=False, reader=reader, writer=writer, server_nonce=greeting[1], client_nonce=_nonce()
    )


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ValueError("not a header") from None


def _nonce() -> bytes:
    return secrets.token_hex(_NONCE_BYTES).encode()
