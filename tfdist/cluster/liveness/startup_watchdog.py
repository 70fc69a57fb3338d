"""Ends a worker that waits in TensorFlow's start for one that has died since all had met. Imports no TensorFlow.

TensorFlow waits there for more than ten minutes, deaf to signals, and no thread of Python runs meanwhile: a process
beside it (keeper.py) keeps the time and looks after the others.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster import interruption
from tfdist.cluster.discovery import hostlist
from tfdist.cluster.liveness import startup_watchdog_process

_SIGEV_THREAD = 2


class _Sigevent(ctypes.Structure):
    """What happens at the end of an asynchronous read, as the C library has it on 64-bit Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 32),
    )


class _Read(ctypes.Structure):
    """An asynchronous read: struct aiocb."""

    _fields_ = (
        ("file", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("event", _Sigevent),
        ("rest", ctypes.c_char * 128),
    )


# What the C library reads and writes until this process ends.
_kept: list[Any] = []


@contextlib.contextmanager
def deadline(rank: int, roster: Sequence[Mapping[str, Any]], seconds: float) -> Iterator[None]:
    """Ends this process (code 76), naming who does not answer, if a block takes longer or another worker dies in it.

    Args:
        rank: of this worker.
        roster: what `preflight.check` has returned.
        seconds: how long the block may take.
    """
    others = [
        [
            *hostlist.split_address(worker["address"]),
            f"worker {worker['rank']} (host {worker['host']}, pid {worker['pid']})",
        ]
        for worker in roster
        if worker["rank"] != rank
    ]
    mouth = _end_when_told(interruption.EXIT_PEER_LOST)
    command = [
        sys.executable,
        "-I",
        "-S",
        startup_watchdog_process.__file__,
        json.dumps([os.getpid(), rank, seconds, others, mouth]),
    ]
    # Control-C is for the worker: it lives on, or ends and takes the pipe away.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, pass_fds=[mouth]
    ):
        yield


def _end_when_told(code: int) -> int:
    """Returns a pipe; once something is written there, this process ends with `code`.

    A thread of the C library waits for it, since none of Python's can run: its last act is to call _exit.
    """
    ear, mouth = os.pipe()
    library, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(1)
    function = ctypes.cast(library._exit, ctypes.c_void_p).value
    event = _Sigevent(value=code, notify=_SIGEV_THREAD, function=function)
    read = _Read(file=ear, buffer=ctypes.addressof(buffer), bytes=1, event=event)
    library.aio_read(ctypes.byref(read))
    _kept.append((buffer, read))
    return mouth
