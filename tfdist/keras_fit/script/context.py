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
from tfdist.cluster import collective_guard
from tfdist.cluster.cluster import Cluster
from tfdist.config import patching, user_code

# The modules of this directory, and what calls them for what they replace.
_HERE = (f"{pathlib.Path(__file__).parent}/", patching.__file__)

# Libraries that train many models, and skip those that they have trained before.
_SEARCHES = ("keras_tuner", "autokeras", "optuna")


@dataclasses.dataclass
class _Script:
    """The script that runs; `by_tfdist`: whether tfdist's own code runs, and not that of the script."""

    cluster: Cluster
    by_tfdist: bool = False
    # Temporary files and directories that the script has made.
    temporary: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Drawn:
    """How much was drawn, and in which block of `apart`."""

    block: tuple[int, ...] = ()
    draws: int = 0
    # Blocks of `apart` in this one.
    blocks: int = 0


_script: _Script | None = None
_drawn = _Drawn()


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
def apart() -> Iterator[None]:
    """As `running`; what the block draws changes no later draw, as a resumed script may skip the block or a part."""
    _drawn.blocks += 1
    block = (*_drawn.block, _drawn.draws, _drawn.blocks)
    with running(), patching.set_in_block(_drawn, block=block, draws=0, blocks=0):
        yield


def begin_draws() -> None:
    """Begins to count draws anew, for another script."""
    vars(_drawn).update(vars(_Drawn()))


def next_draw() -> tuple[int, ...]:
    """Returns the place of a draw of all workers, another one for each draw: the same in each start of the script."""
    _drawn.draws += 1
    return *_drawn.block, _drawn.draws


def is_running() -> bool:
    """Returns True within `running`."""
    return _script is not None and _script.by_tfdist


def in_script() -> bool:
    """Returns True if tfdist.run runs a script."""
    return _script is not None


def on_all_workers() -> bool:
    """Returns True where code runs that all of several workers run: the script's, in the main thread."""
    return _script is not None and not _script.by_tfdist and _script.cluster.num_workers > 1 and draws_for_all()


def draws_for_all() -> bool:
    """Returns True where all workers draw the same: in the main thread, and not where one worker runs alone."""
    return not cluster_lib.on_this_worker_only() and threading.current_thread() is threading.main_thread()


def calling_line(path: Any = None, *, directly: bool = False) -> str:
    """Returns the place of the script that calls, such as "train.py:12"; "" where workers need not do the same.

    That is: a worker runs alone, a module is imported, or a library calls for a purpose of its own.

    Args:
        path: the file that a function is called for; None: another function. Libraries that a line of the script calls
            write files for it, such as a picture; but not those in hidden and temporary directories, which are theirs.
        directly: whether not even a module of Python may be between.
    """
    if not on_all_workers():
        return ""
    frame, libraries = inspect.currentframe(), set()
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            return ""
        owner = _owner(file)
        if owner == "user":
            break
        libraries.add(owner)
        frame = frame.f_back
    if frame is None or (directly and "python" in libraries):
        return ""
    if "library" in libraries and (path is None or _is_of_library(path)):
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
    """Returns whose code `file` is: "user", "library", "python", or "here"."""
    if file.startswith((*_HERE, "<")):
        return "here"
    if user_code.is_users(file):
        return "user"
    return "python" if user_code.is_of_python(file) else "library"


def _is_of_library(path: Any) -> bool:
    """Returns whether a library writes `path` for itself: it is hidden, temporary, or in the library."""
    if not isinstance(path, str | bytes | os.PathLike):
        return True
    place, here = os.path.abspath(os.fsdecode(path)), os.path.join(os.getcwd(), "")
    # The working directory may itself be a temporary one.
    works_there = is_of_host(here) and here != _temporary_directory() and place.startswith(here)
    if is_of_host(place) and not works_there:
        return not any(place.startswith(made) for made in _script.temporary)
    hidden = any(part.startswith(".") for part in place.removeprefix(here).split(os.sep))
    return hidden or not user_code.is_users(place) or place.startswith(("/dev/", "/proc/"))


def note_temporary(path: str) -> None:
    """Notes a temporary file or directory that the script has made: what libraries write there is the script's."""
    if _script is not None:
        _script.temporary.append(os.path.abspath(path))


def meet(place: str) -> None:
    """Waits until all workers are at `place` of the script, while tracing too, or raises RuntimeError. Collective."""
    with tf.init_scope():
        places = _script.cluster.all_gather([zlib.crc32(place.encode())])[:, 0]
    others = np.flatnonzero(places != places[0])
    if len(others):
        raise RuntimeError(
            f"Worker {others[0]} does not run the same lines of the script as worker 0; worker {_script.cluster.rank} "
            f"is at {place}. Files, the time or something else decided otherwise there: all workers must run the same."
        )


def owns(path: Any) -> bool:
    """Returns whether this worker writes `path`: the chief, and on each host the first worker for temporary files."""
    return _script.cluster.is_chief or (is_of_host(path) and is_first_of_host())


def is_of_host(path: Any) -> bool:
    """Returns whether each host has a file `path` of its own: it is a temporary one."""
    if not isinstance(path, str | os.PathLike):
        return False
    return os.path.join(os.path.abspath(os.fsdecode(path)), "").startswith(_temporary_directory())


def _temporary_directory() -> str:
    return os.path.join(tempfile.gettempdir(), "")


def is_first_of_host() -> bool:
    """Returns whether this worker has the lowest rank on its host."""
    hosts = [worker.host for worker in _script.cluster.roster.workers]
    return not hosts or hosts.index(hosts[_script.cluster.rank]) == _script.cluster.rank


def once(place: str, function: Callable[[], Any], path: Any = None) -> Any:
    """Calls `function` on the worker that owns `path`, while the others wait. Collective: all workers call it.

    Returns:
        On every worker what it returned, if JSON can hold it.

    Raises:
        Exception: on every worker, as the chief.
    """
    meet(place)
    calls, returned, failed = owns(path), None, None
    if calls:
        with running(), cluster_lib.on_one_worker(f"what {place} writes", "call it outside"):
            try:
                returned = function()
            except Exception as error:
                failed = error
    with tf.init_scope():
        there = collective_guard.share(_script.cluster, returned, failed)
    if failed is not None:
        raise failed
    return returned if calls else there


def make_once(place: str, function: Callable[[], Any], path: Any) -> Any:
    """Calls `function` as `once` does; returns what it returned on the worker that owns `path`, None on the others."""
    made: list[Any] = []
    once(place, lambda: made.append(function()), path)
    return made[0] if made else None
