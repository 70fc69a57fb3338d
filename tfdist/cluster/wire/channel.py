"""Signed messages over one TCP connection: proof of the sender, no repetition, bounded sizes.

The server sends a random number first, and the client's first message contains another one. Each message is a header
line and a body, a JSON object:

    LENGTH SHA256-OF-BODY SIGNATURES\n      (the first one of a client: CLIENT-NONCE LENGTH ...)

The signatures (HMAC-SHA256) cover both random numbers, the direction, the number of the message, the length and the
hash of the body: a message cannot be changed, repeated in this or another connection, or sent back. The receiver checks
the header, at most `_HEADER_BYTES`, before it reads a body, and the hash before it parses it.
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

from tfdist.cluster.wire.keys import Keys

_GREETING = b"tfdist/1 "
_REFUSED = b"refused\n"
_NONCE_BYTES = 16
_HEADER_BYTES = 512
# Longest body, in bytes; the addresses of a thousand workers need less than one MB.
_BODY_BYTES = 2**24
_HEADER = re.compile(rb"(?:([0-9a-f]{32}) )?(\d{1,8}) ([0-9a-f]{64}) ([0-9a-f]{64}(?:,[0-9a-f]{64})?)\n")


class RefusedError(ValueError):
    """The server has another key."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Channel:
    """One end of a connection, after the exchange of random numbers."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    keys: Keys
    is_server: bool
    server_nonce: bytes
    client_nonce: bytes = b""
    sent: int = 0
    received: int = 0

    @property
    def peer(self) -> str:
        """The IP address of the other end."""
        return self.writer.get_extra_info("peername")[0]

    def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Sends a message: a JSON object, or its encoding. Does not block or raise."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        length, digest = str(len(body)).encode(), hashlib.sha256(body).hexdigest().encode()
        signatures = self.keys.sign(self._to_sign(self.is_server, self.sent, length, digest))
        nonce = b"" if self.is_server or self.sent else self.client_nonce + b" "
        self.sent += 1
        self.writer.write(nonce + b" ".join((length, digest, signatures)) + b"\n" + body)

    async def receive(self, proven: Callable[[], Any] = lambda: None) -> dict[str, Any]:
        """Returns the next message.

        Args:
            proven: called as soon as the header proves that the sender has a key.

        Raises:
            RefusedError: this end is a client, and the server has another key.
            ValueError: not a message with a valid signature, or its body is not a JSON object.
            EOFError: the connection is closed.
            OSError: it is broken.
        """
        header = await self.reader.readline()
        if not header:
            raise EOFError
        if header == _REFUSED and not self.is_server:
            raise RefusedError
        match = _HEADER.fullmatch(header)
        if match is None or (match[1] is not None) != (self.is_server and self.received == 0):
            raise ValueError("not a header")
        self.client_nonce = match[1] or self.client_nonce
        length, digest, signatures = match[2], match[3], match[4]
        if not self.keys.verify(self._to_sign(not self.is_server, self.received, length, digest), signatures):
            if self.is_server:
                self.writer.write(_REFUSED)
            raise ValueError("signed with another key")
        proven()
        if int(length) > _BODY_BYTES:
            raise ValueError("too long")
        body = await self.reader.readexactly(int(length))
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise ValueError("changed")
        self.received += 1
        try:
            message = json.loads(body)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("not a JSON object")
        return message

    def _to_sign(self, by_server: bool, number: int, length: bytes, digest: bytes) -> bytes:
        parts = (b"server" if by_server else b"client", self.server_nonce, self.client_nonce, str(number).encode())
        return b" ".join((_GREETING.strip(), *parts, length, digest))


async def accept(connection: socket.socket, keys: Keys) -> Channel:
    """Returns the server's end of an accepted connection, whose first message proves the client."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=_HEADER_BYTES)
    nonce = secrets.token_hex(_NONCE_BYTES).encode()
    writer.write(_GREETING + nonce + b"\n")
    return Channel(reader=reader, writer=writer, keys=keys, is_server=True, server_nonce=nonce)


async def connect(sockaddr: tuple[str, int], keys: Keys) -> Channel:
    """Connects to a server, and returns the client's end.

    Args:
        sockaddr: IP address or host name, and port.

    Raises:
        OSError: no connection.
        ValueError, EOFError: a program other than a tfdist worker is listening there.
    """
    # The next address of a name is tried before the first one has failed.
    reader, writer = await asyncio.open_connection(*sockaddr, limit=_HEADER_BYTES, happy_eyeballs_delay=0.25)
    try:
        if await reader.readexactly(len(_GREETING)) != _GREETING:
            raise ValueError("not a tfdist worker")
        server_nonce = (await reader.readexactly(2 * _NONCE_BYTES + 1)).strip()
    except BaseException:
        writer.close()
        raise
    return Channel(
        reader=reader,
        writer=writer,
        keys=keys,
        is_server=False,
        server_nonce=server_nonce,
        client_nonce=secrets.token_hex(_NONCE_BYTES).encode(),
    )


async def request(sockaddr: tuple[str, int], keys: Keys, message: Mapping[str, Any] | bytes) -> dict[str, Any]:
    """Sends one message to a server, and returns its reply; raises as `connect` and `Channel.receive`."""
    channel = await connect(sockaddr, keys)
    try:
        channel.send(message)
        return await channel.receive()
    finally:
        channel.writer.close()
