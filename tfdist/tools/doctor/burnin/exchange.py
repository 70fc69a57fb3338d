"""How the tasks exchange their results: files in a folder that all see, and a connection to the next task."""

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tfdist.report import files, metrics_file, read_back

# Bytes that a task reads from the next one in a round.
LINK_BYTES = 2**24
_BLOCK = bytes(2**18)
_SECONDS = 10.0
_POLL_SECONDS = 0.2


class Folder:
    """The folder of a burn-in: a file for each rank, with a JSON record in each line.

    The files of an earlier burn-in may be there, and the clocks of hosts differ. So rank 0 begins with a random
    token, which the other ranks repeat: a file without the token of this start is not read.
    """

    def __init__(self, path: Path, rank: int):
        files.make_workdir(path, "folder of the burn-in")
        self._path, self._rank = path, rank
        # The token of this rank, and that of rank 0; "": not known.
        self._token = secrets.token_hex(8)
        self._of_start = "" if rank else self._token
        self._file(rank).write_bytes(b"")

    def _file(self, rank: int) -> Path:
        return self._path / f"rank-{rank:05d}.jsonl"

    def meet(self, about: Mapping[str, Any], ranks: int, end: float) -> list[Mapping[str, Any] | None]:
        """Writes `about`, the first record of this rank, and waits for all ranks until `end` (time.monotonic()).

        Returns the first record of each rank; None for those that have not started.
        """
        self.write({**about, "token": self._token})
        if self._rank == 0:
            self.write({"repeats": self._token})
            found = [next(iter(self.wait_for(rank, bool, end)), None) for rank in range(ranks)]
            self.write({"started": found})
            return found
        while time.monotonic() < end:
            records = self._read(0)
            if records and records[0].get("token", "") != self._of_start:
                self._of_start = records[0]["token"]
                self.write({"repeats": self._of_start})
            started = next((one["started"] for one in records if "started" in one), [None] * ranks)
            if self._rank < len(started) and (started[self._rank] or {}).get("token") == self._token:
                return started
            time.sleep(_POLL_SECONDS)
        return [None] * ranks

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a record of this rank."""
        with self._file(self._rank).open("ab") as file:
            file.write(metrics_file.json_line(record))

    def _read(self, rank: int) -> list[dict[str, Any]]:
        with contextlib.suppress(ValueError):
            return read_back.read_records(self._file(rank))
        return []

    def read(self, rank: int) -> list[dict[str, Any]]:
        """Returns the complete records of a rank; [] if it has not started."""
        records = self._read(rank)
        return records if {"repeats": self._of_start} in records else []

    def wait_for(self, rank: int, ready: Callable[[list[dict[str, Any]]], bool], end: float) -> list[dict[str, Any]]:
        """Returns the records of a rank as soon as they are `ready`, at the latest at `end` (time.monotonic())."""
        while not ready(found := self.read(rank)) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        return found


@contextlib.contextmanager
def turn(rank: int, at_once: int | None) -> Iterator[None]:
    """Runs the block when fewer than `at_once` tasks of this host are in theirs; None: at once."""
    if at_once is None:
        yield
        return
    with (Path(tempfile.gettempdir()) / f"tfdist-burnin-{os.getuid()}-{rank % at_once}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def serve_link(block_seconds: float = 0.0) -> int:
    """Sends `LINK_BYTES` to each connection, in a thread; returns the port.

    A pause of `block_seconds` after each block of 256 KB shows what a slow link does.
    """
    server = socket.create_server(("", 0), backlog=16)

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with contextlib.suppress(OSError), connection:
                connection.settimeout(_SECONDS)
                for _ in range(LINK_BYTES // len(_BLOCK)):
                    connection.sendall(_BLOCK)
                    time.sleep(block_seconds)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def link_rate(host: str, port: int) -> float:
    """Returns GB/s at which this task reads from another one; 0.0: it cannot be reached."""
    buffer = bytearray(len(_BLOCK))
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            begin, done = time.perf_counter(), 0
            while count := connection.recv_into(buffer):
                done += count
            return done / (time.perf_counter() - begin) / 1e9 if done == LINK_BYTES else 0.0
    except OSError:
        return 0.0
