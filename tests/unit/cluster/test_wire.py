"""Signed messages, keys and limits of the control plane: strangers, forgers and broken senders change nothing."""

import asyncio
import contextlib
import os
import pwd
import random
import resource
import socket
import stat

import pytest

from tfdist.cluster.control import keys, wire
from tfdist.cluster.control import listener as listener_lib

KEY = keys.Key(b"k" * 64)
OTHER_KEY = keys.Key(b"x" * 64)
MESSAGES = 600


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.asynccontextmanager
async def echo(received: list[dict], key: keys.Key = KEY):
    """Serves connections; every message is kept and sent back."""

    async def handle(channel: wire.Channel, first: dict) -> None:
        message = first
        while True:
            received.append(message)
            channel.send(message)
            message = await channel.receive()

    with contextlib.closing(listener_lib.listen(0)) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        async with listener_lib.serving(listener, key, handle):
            yield address


async def request(address: tuple[str, int], key: keys.Key, message: dict) -> dict:
    """Sends one message, and returns the reply."""
    channel = await wire.connect(address, key)
    try:
        channel.send(message)
        return await channel.receive()
    finally:
        channel.close()


async def recorded(message: dict, key: keys.Key, server_nonce: bytes) -> bytes:
    """The bytes of a client's first message for a server with this random number."""
    sent: list[bytes] = []
    members = {"write": lambda self, data: sent.append(data), "is_closing": lambda self: False}
    writer = type("Writer", (), members)()
    ends = {"reader": asyncio.StreamReader(), "writer": writer}
    wire.Channel(key=key, is_server=False, **ends, server_nonce=server_nonce, client_nonce=b"a" * 32).send(message)
    return b"".join(sent)


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """A frame with a bit changed, some bytes left out, or some more."""
    at, length = rng.randrange(len(frame)), rng.randint(1, 40)
    changed = bytes([frame[at] ^ 1 << rng.randrange(8)]) + frame[at + 1 :]
    return frame[:at] + rng.choice([changed, frame[at + length :], rng.randbytes(length) + frame[at:]])


def test_random_and_mutated_frames_reach_nobody_and_leak_nothing():
    """Also frames that were right in another connection. Half of the senders stay connected without a word."""
    rng = random.Random(1)

    async def attack(address: tuple[str, int], gate: asyncio.Semaphore, number: int) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.suppress(OSError):
                nonce = (await reader.readline()).split()[-1]
                frame = await recorded({"number": number}, KEY, nonce)
                stranger = await recorded({"number": number}, OTHER_KEY, nonce)
                replayed = await recorded({"number": number}, KEY, b"b" * 32)
                made = (rng.randbytes(rng.randrange(2000)), mutated(rng, frame), stranger, replayed)
                writer.write(made[number % 4])
                if number % 2:
                    writer.write_eof()
                    await reader.read()
            writer.close()

    async def main() -> None:
        received: list[dict] = []
        async with echo(received) as address:
            before, gate = descriptors(), asyncio.Semaphore(40)
            await asyncio.gather(*(attack(address, gate, number) for number in range(MESSAGES)))
            assert received == []
            assert await request(address, KEY, {"good": 1}) == {"good": 1}
            with pytest.raises(wire.RefusedError):
                await request(address, OTHER_KEY, {"good": 2})
            await asyncio.sleep(0.1)
            assert received == [{"good": 1}]
            assert descriptors() <= before + 10

    asyncio.run(main())


def test_messages_cannot_be_repeated_or_sent_back():
    async def main() -> None:
        received: list[dict] = []
        async with echo(received) as address:
            reader, writer = await asyncio.open_connection(*address)
            nonce = (await reader.readline()).split()[-1]
            frame = await recorded({"number": 1}, KEY, nonce)
            writer.write(frame)
            reply = await reader.readline() + await reader.readexactly(len(b'{"number": 1}'))
            # As the client's second message: the first one again, without its random number, and the server's reply.
            writer.write(frame.split(b" ", 1)[1] + reply)
            assert await reader.readline() == b"refused\n"
            writer.close()
        assert received == [{"number": 1}]

    asyncio.run(main())


def test_hundreds_of_half_open_connections_and_slow_senders_block_nobody():
    async def main() -> None:
        received: list[dict] = []
        async with echo(received) as address:
            before = descriptors()
            with contextlib.ExitStack() as stack:
                for number in range(600):
                    stranger = stack.enter_context(socket.create_connection(address))
                    if number % 3 == 0:
                        stranger.sendall(b"a" * (number % 300))  # The start of a header that never ends.
                # Ours, and at most the limit of the server's.
                for _ in range(1000):
                    await asyncio.sleep(0)
                    assert descriptors() <= before + 600 + listener_lib._MAX_UNAUTHENTICATED + 10
                reply = await asyncio.wait_for(request(address, KEY, {"good": 1}), 30)
                assert reply == {"good": 1}
            await asyncio.sleep(0.2)
            assert descriptors() <= before + 10
        assert received == [{"good": 1}]

    asyncio.run(main())


def test_the_key_comes_from_the_variable_or_from_a_file_that_others_cannot_read(tmp_path, monkeypatch):
    assert os.environ["HOME"] != pwd.getpwuid(os.geteuid()).pw_dir  # That of the tests.
    monkeypatch.setenv("HOME", str(tmp_path))
    key, path = keys.load("job 1", {}), tmp_path / ".tfdist" / "key"
    assert keys.load("job 1", {}) == key and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert str(key) == "Key()"
    # Another job, or another secret, has another key.
    others = [keys.load("job 2", {}), keys.load("job 1", {"TFDIST_KEY": "s" * 20})]
    assert key.verify(b"x", key.sign(b"x")) and not any(other.verify(b"x", key.sign(b"x")) for other in others)
    with pytest.raises(ValueError, match=r"TFDIST_KEY must have at least 16 characters.* 3 characters"):
        keys.load("job 1", {"TFDIST_KEY": "abc"})
    # A file that others can read, or may have made, is not used.
    path.chmod(0o644)
    with pytest.raises(ValueError, match=r"\.tfdist/key"):
        keys.load("job 1", {})
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="ymbolic links"):
        keys.load("job 1", {})


def test_the_soft_limit_of_descriptors_is_raised():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        listener_lib.raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
