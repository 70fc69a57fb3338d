"""Checks that all workers see the same workdir: rank 0 creates a token file, the others wait for it. No TensorFlow."""

import contextlib
import pathlib
from collections.abc import Iterator

from tfdist.cluster.rendezvous import protocol, rpc
from tfdist.cluster.rendezvous.protocol import RendezvousState

# Seconds that a network file system may take to show a new file.
_WORKDIR_SECONDS = 10.0


async def wait_for_token(state: RendezvousState, workdir: pathlib.Path) -> str:
    """Waits for rank 0's token file; returns the path of workdir if it does not appear in time, else ""."""
    limit = min(protocol.now() + _WORKDIR_SECONDS, state.deadline)
    while not state.over:
        # In a thread: a network file system that hangs must not delay replies to other workers.
        seen = rpc.in_thread(_token(workdir, state.chief_nonce).exists)
        seen.add_done_callback(lambda _: state.changed.set())
        await protocol.until(state, lambda seen=seen: seen.done() or state.over, limit)
        if seen.done() and seen.exception() is None and seen.result():
            break
        if protocol.now() >= limit:
            return str(workdir)
        await protocol.until(state, lambda: state.over, protocol.now() + 0.2)
    return ""


@contextlib.contextmanager
def token_file(workdir: pathlib.Path, nonce: str) -> Iterator[None]:
    """Creates workdir and a token file in it, which is removed at the end of the `with` block."""
    workdir.mkdir(parents=True, exist_ok=True)
    token = _token(workdir, nonce)
    token.touch()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            token.unlink()


def _token(workdir: pathlib.Path, nonce: str) -> pathlib.Path:
    # A new name for each start: a network file system may cache that a file does not exist.
    return workdir / f".tfdist-{nonce}"
