"""Whether the code of a script runs, and how one worker does something for all.

All workers run the same script. Where it writes a file, they meet before, one of them writes, and they go on when it is
done: so each finds the files as if it were alone, before and after.
"""

import contextlib
import dataclasses
import functools
import inspect
import os
import pathlib
import tempfile
import threading
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

# The modules of this directory, and what calls them for what they replace.
_HERE = (f"{pathlib.Path(__file__).parent}/", patching.__file__)

# Libraries that train many models, and skip those that they have trained before.
_SEARCHES = ("keras_tuner", "autokeras", "optuna")
_ADVICE = "Files, the time or something else decided otherwise there: all workers must run the same lines."
# Bits for the numbers of the draws in a block of `without_counting_draws`.
_DRAWS_BITS = 32


@dataclasses.dataclass
class _Script:
    """The script that runs; `by_tfdist`: whether tfdist's own code runs, and not that of the script."""

    cluster: Cluster
    by_tfdist: bool = False
    # The number of the last draw for all workers.
    draws: int = 0


_script: _Script | None = None


@contextlib.contextmanager
def script_runs(cluster: Cluster) -> Iterator[None]:
    """The block runs the script."""
    global _script
    _script = _Script(cluster)
    try:
        yield
    finally:
        _script = None


def _forget_script() -> None:
    """A child process that the script forks runs alone: it must not wait for the other workers."""
    global _script
    _script = None


os.register_at_fork(after_in_child=_forget_script)


def running(by_tfdist: bool = True) -> contextlib.AbstractContextManager[None]:
    """Runs tfdist's own code: what it saves, and the variables that Keras makes for it, are of this worker only.

    Args:
        by_tfdist: False: code of the script, such as a callback, is called within tfdist's own.
    """
    return contextlib.nullcontext() if _script is None else patching.set_in_block(_script, by_tfdist=by_tfdist)


@contextlib.contextmanager
def without_counting_draws() -> Iterator[None]:
    """As `running`; what the block draws changes no later draw, as a resumed script may skip the block or a part."""
    if _script is None:
        yield
        return
    _script.draws += 1
    with running(), patching.set_in_block(_script, draws=_script.draws << _DRAWS_BITS):
        yield


def next_draw() -> int:
    """Returns the number of a draw of all workers, the same in each start of the script; 0: this worker draws alone."""
    if _script is None or not _draws_for_all():
        return 0
    _script.draws += 1
    return _script.draws


def is_running() -> bool:
    """Returns True within `running`."""
    return _script is not None and _script.by_tfdist


def in_script() -> bool:
    """Returns True if tfdist.run runs a script."""
    return _script is not None


def on_all_workers() -> bool:
    """Returns True where code runs that all of several workers run: the script's, in the main thread."""
    return _script is not None and not _script.by_tfdist and _script.cluster.num_workers > 1 and _draws_for_all()


def _draws_for_all() -> bool:
    """Returns True where all workers draw the same: in the main thread, and not where one worker runs alone."""
    return not cluster_lib.on_this_worker_only() and threading.current_thread() is threading.main_thread()


def line_of_script(path: Any = None) -> str:
    """Returns the place of the script that calls, such as "train.py:12"; "" where workers need not do the same.

    That is: a worker runs alone, a module is imported, `path` is no path or one of this worker alone, or a library
    calls for a purpose of its own.

    Args:
        path: the file that a function is called for; None: another function. Libraries that a line of the script calls
            write files for it, such as a picture; but not those in hidden directories, which are theirs.
    """
    if not on_all_workers() or (path is not None and (not _is_path(path) or is_own(path))):
        return ""
    frame, by_library = inspect.currentframe(), False
    while frame is not None and (owner := _owner(frame.f_code.co_filename)) != "user":
        if owner == "import":
            return ""
        by_library = by_library or owner == "library"
        frame = frame.f_back
    if frame is None or (by_library and (path is None or _is_of_library(path))):
        return ""
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def calling_search() -> str:
    """Returns the library of `_SEARCHES` that has called the code that runs now; ""."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in _SEARCHES:
            return name
        frame = frame.f_back
    return ""


@functools.cache
def _owner(file: str) -> str:
    """Returns whose code `file` is: "user", "library", "import", or "" of Python and of this directory."""
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


def is_own(path: Any) -> bool:
    """Returns whether a path is of this worker alone: `tempfile` has made it, or it discards what is written."""
    if not _is_path(path):
        return False
    place = os.path.abspath(os.fsdecode(path))
    return place == os.devnull or place.startswith(os.path.join(tempfile.gettempdir(), ""))


def barrier(place: str, path: Any = None) -> None:
    """Waits until all workers are at `place` of the script, while tracing too, or raises RuntimeError. Collective.

    `path`: of the file that is written there; another one than the chief's is a warning.
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
            f"WARNING: worker {_script.cluster.rank} names a file {os.fsdecode(path)} at {place}, and worker 0, which "
            "writes it, has another name: what each worker reads by itself (the time, uuid, os.urandom, its process) "
            "is no name for all. Pass the name on the command line.",
            key="names of files",
            everywhere=True,
        )


def writes_here(path: Any) -> bool:
    """Returns whether this worker writes `path`: the chief, and on each host the first worker for files of the host."""
    return _script.cluster.is_chief or (_is_of_host(path) and is_first_of_host())


def _is_of_host(path: Any) -> bool:
    """Returns whether each host has a file `path` of its own, in its temporary directory."""
    places = (os.path.dirname(tempfile.gettempdir()), "/tmp", "/dev/shm")
    return _is_path(path) and os.path.abspath(os.fsdecode(path)).startswith(tuple(f"{place}/" for place in places))


def is_first_of_host() -> bool:
    """Returns whether this worker has the lowest rank on its host."""
    hosts = [worker["host"] for worker in _script.cluster.roster.workers]
    return not hosts or hosts.index(hosts[_script.cluster.rank]) == _script.cluster.rank


def on_owner(place: str, function: Callable[[], Any], path: Any = None) -> Any:
    """Calls `function` on the worker that owns `path`, while the others wait. Collective: all workers call it.

    Returns:
        There, what it returned; on the others what it returned on the chief, or None if JSON cannot hold that.

    Raises:
        Exception: on every worker, as the chief.
    """
    barrier(place, path)
    calls, returned, failed = writes_here(path), None, None
    if calls:
        with running(), cluster_lib.on_one_worker(f"what {place} writes", "call it outside"):
            try:
                returned = function()
            except Exception as error:
                failed = error
    with tf.init_scope():
        there = collective_guard.send_to_all(_script.cluster, returned, failed)
    if failed is not None:
        raise failed
    return returned if calls else there
