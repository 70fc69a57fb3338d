"""Which code of a script's process runs now, and calls that one worker makes for all.

All workers run the same script. Where it writes a file, they wait for each other, the chief writes (in /tmp, one worker
per host), and all continue when the file is written. So each worker finds the same files as if it ran alone.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import pathlib
import random
import tempfile
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard, error_report
from tfdist.cluster.cluster import Cluster
from tfdist.cluster.control import heartbeat_monitor
from tfdist.config import patching, user_code
from tfdist.keras_fit import messages

# The modules of this directory, and the module that calls their replacements of functions.
_HERE = (f"{pathlib.Path(__file__).parent}/", patching.__file__)

# Libraries that train many models, and skip those that they have trained before.
_SEARCHES = ("keras_tuner", "autokeras", "optuna")
_ADVICE = (
    "A condition such as `if rank == 0:`, files, the time or something else led to another branch there: all workers "
    "must run the same lines. A file needs no such condition: tfdist lets only the chief write it."
)


@dataclasses.dataclass
class _Script:
    """The script that runs; `by_tfdist`: whether tfdist's own code runs now, called by the script."""

    cluster: Cluster
    # Draws for all workers.
    generator: random.Random
    by_tfdist: bool = False


_script: _Script | None = None


@contextlib.contextmanager
def script_runs(cluster: Cluster, seed: int) -> Iterator[None]:
    """Marks the block that runs the script; `seed`: of the draws for all workers."""
    global _script
    _script = _Script(cluster, random.Random(str(seed)))  # Not the sequence of `random.seed(seed)`.
    try:
        yield
    finally:
        _script = None


def _forget_script() -> None:
    """A child process that the script forks runs alone: it must not wait for the other workers."""
    global _script
    _script = None


os.register_at_fork(after_in_child=_forget_script)


def tfdist_code(by_tfdist: bool = True) -> contextlib.AbstractContextManager[None]:
    """Marks a block of tfdist's own code: its files, and the variables that Keras makes for it, are this worker's only.

    Args:
        by_tfdist: False: the block runs code of the script, such as a callback, inside tfdist's own code.
    """
    return contextlib.nullcontext() if _script is None else patching.set_in_block(_script, by_tfdist=by_tfdist)


@contextlib.contextmanager
def without_counting_draws() -> Iterator[None]:
    """Like `tfdist_code`, but draws in the block change no later draw: a resumed script may skip all or part of it."""
    if _script is None:
        yield
        return
    generator = random.Random(_script.generator.getrandbits(64))
    with tfdist_code(), patching.set_in_block(_script, generator=generator):
        yield


def generator() -> random.Random:
    """Returns the generator that draws the same numbers on all workers; if this worker draws alone, the system's."""
    return random.SystemRandom() if _script is None or not _draws_for_all() else _script.generator


def in_tfdist_code() -> bool:
    """Returns True within `tfdist_code`."""
    return _script is not None and _script.by_tfdist


def in_script() -> bool:
    """Returns True if tfdist.run runs a script."""
    return _script is not None


def on_all_workers() -> bool:
    """Returns True if there are several workers and all run this code: the script's, in the main thread."""
    return _script is not None and not _script.by_tfdist and _script.cluster.num_workers > 1 and _draws_for_all()


def _draws_for_all() -> bool:
    """Returns True if all workers draw the same numbers: in the main thread, unless one worker runs alone."""
    return not cluster_lib.is_on_one_worker() and threading.current_thread() is threading.main_thread()


def line_of_script(path: Any = None, *, for_library: bool = False) -> str:
    """Returns the calling line of the script, such as "train.py:12"; "" if the workers need not act together.

    They need not if a worker runs alone, a module is imported, `path` is not a path or is private to this worker, or a
    library calls for a purpose of its own.

    Args:
        path: the file that the function writes; None: the function has no file. A file that a library writes, such as a
            picture, counts as the script's, unless it is in a hidden directory or in the library.
        for_library: the workers also act together if a library calls for a purpose of its own, such as a download.
    """
    if not on_all_workers() or (path is not None and (not _is_path(path) or _is_private(path))):
        return ""
    frame, by_library = inspect.currentframe(), False
    while frame is not None and (kind := _kind_of_code(frame.f_code.co_filename)) != "user":
        if kind == "import":
            return ""
        by_library = by_library or kind == "library"
        frame = frame.f_back
    if frame is None or (by_library and not for_library and (path is None or _is_of_library(path))):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def calling_search() -> str:
    """Returns the library of `_SEARCHES` that has called the current code; "": none has."""
    packages = (frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_stack(None))
    return next((package for package in packages if package in _SEARCHES), "")


@functools.cache
def _kind_of_code(file: str) -> str:
    """Returns whose code `file` is: "user", "library", "import", or "" for Python and this directory."""
    if file.startswith("<frozen importlib"):
        return "import"
    if file.startswith((*_HERE, "<")) or user_code.is_of_python(file):
        return ""
    return "user" if user_code.is_users(file) else "library"


def _is_path(value: Any) -> bool:
    return isinstance(value, str | bytes | os.PathLike)


def _is_of_library(path: Any) -> bool:
    """Returns whether a library writes `path` for itself: it is hidden, or in the library."""
    place = os.path.abspath(os.fsdecode(path)).removeprefix(os.path.join(os.getcwd(), ""))
    return any(part.startswith(".") for part in place.split(os.sep)) or not user_code.is_users(place)


def _is_private(path: Any) -> bool:
    """Returns whether a path is private to this worker: in its temporary directory, or the null device."""
    if not _is_path(path):
        return False
    place = os.path.abspath(os.fsdecode(path))
    return place == os.devnull or place.startswith(os.path.join(tempfile.gettempdir(), ""))


def barrier(place: str, path: Any = None) -> None:
    """Waits until all workers are at `place` of the script, or raises RuntimeError. Collective; also works in a trace.

    `path`: the file that is written there. If it differs from the chief's, this worker prints a warning.
    """
    named = _is_path(path)
    numbers = [zlib.crc32(place.encode()), zlib.crc32(os.fsencode(path)) if named else -1]
    try:
        with tf.init_scope():
            found = _script.cluster.all_gather(numbers)
    except tf.errors.OpError as error:
        if not error_report.DIFFERENT.search(str(error)):
            raise
        raise RuntimeError(
            f"{heartbeat_monitor.DIFFERENT_GRAPHS}: worker {_script.cluster.rank} is at {place}, and others are not. "
            f"{_ADVICE}"
        ) from error
    others = np.flatnonzero(found[:, 0] != found[0, 0])
    if len(others):
        raise RuntimeError(
            f"Worker {others[0]} does not run the same lines of the script as worker 0; worker {_script.cluster.rank} "
            f"is at {place}. {_ADVICE}"
        )
    if named and numbers[1] != found[0, 1]:
        messages.log_once(
            f"WARNING: worker {_script.cluster.rank} names a file {os.fsdecode(path)} at {place}, but worker 0, which "
            "writes it, uses another name: a name must not depend on the time, uuid, os.urandom or the process, which "
            "differ between workers. Pass the name on the command line.",
            key="names of files",
            everywhere=True,
        )


def writes_here(path: Any) -> bool:
    """Returns whether this worker writes `path`: the chief, or, if each host has its own file, its first worker."""
    return _script.cluster.is_chief or (_is_of_host(path) and is_first_of_host())


def _is_of_host(path: Any) -> bool:
    """Returns whether each host has a file `path` of its own, in its temporary directory."""
    places = (os.path.dirname(tempfile.gettempdir()), "/tmp", "/dev/shm")
    return _is_path(path) and os.path.abspath(os.fsdecode(path)).startswith(tuple(f"{place}/" for place in places))


def is_first_of_host() -> bool:
    """Returns whether this worker has the lowest rank on its host."""
    hosts = [worker["host"] for worker in _script.cluster.roster.workers]
    return not hosts or hosts.index(hosts[_script.cluster.rank]) == _script.cluster.rank


def call_on_owner(place: str, function: Callable[[], Any], path: Any = None) -> Any:
    """Calls `function` on the workers that write `path` (`writes_here`); the others wait. Collective: all call it.

    Returns:
        On the workers that write, the result of `function`; on the others the chief's, or None if JSON cannot hold it.

    Raises:
        Exception: on every worker if `function` raises on the chief; else only where it raises.
    """
    barrier(place, path)
    calls, returned, failed = writes_here(path), None, None
    if calls:
        with tfdist_code(), cluster_lib.on_one_worker(f"what {place} writes", "call it outside"):
            try:
                returned = function()
            except Exception as error:
                failed = error
    with tf.init_scope():
        there = collective_guard.send_to_all(_script.cluster, returned, failed)
    if failed is not None:
        raise failed
    return returned if calls else there
