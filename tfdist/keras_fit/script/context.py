"""Whether the code of a script runs, and how one worker does something for all.

All workers run the same script. Where it writes a file, they meet before, one of them writes, and they go on when it is
done: so each finds the files as if it were alone, before and after.
"""

import contextlib
import dataclasses
import inspect
import os
import pathlib
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tfdist.cluster import cluster as cluster_lib
from tfdist.cluster import collective_guard
from tfdist.cluster.cluster import Cluster

# Modules of Python whose calls are those of the script that calls them.
_TRANSPARENT = (
    *("contextlib", "csv", "gzip", "bz2", "lzma", "os", "pathlib", "posixpath", "genericpath", "shutil", "tempfile"),
    *("zipfile", "tfdist.config.patching"),
)
# A script may be in a directory that also has its environment.
_LIBRARIES = tuple(f"{pathlib.Path(module.__file__).parents[1]}/" for module in (np, keras))
_HERE = f"{pathlib.Path(__file__).parent}/"


@dataclasses.dataclass(slots=True)
class _Script:
    """The script that runs; `own`: whether tfdist's own code runs, and not that of the script."""

    cluster: Cluster
    # Code in this directory and below is the script's own.
    directory: str
    own: bool = False
    in_callback: bool = False


_script: _Script | None = None


@contextlib.contextmanager
def script_runs(cluster: Cluster, script: pathlib.Path) -> Iterator[None]:
    """The block runs `script`."""
    global _script
    _script = _Script(cluster, f"{script.resolve().parent}/")
    try:
        yield
    finally:
        _script = None


@contextlib.contextmanager
def running(own: bool = True) -> Iterator[None]:
    """Runs tfdist's own code: what it saves, and the variables that Keras makes for it, are of this worker only.

    Args:
        own: False: code of the script, such as a callback, is called within tfdist's own.
    """
    if _script is None:
        yield
        return
    script, before = _script, (_script.own, _script.in_callback)
    script.own, script.in_callback = own, not own
    try:
        yield
    finally:
        script.own, script.in_callback = before


def is_running() -> bool:
    """Returns True within `running`."""
    return _script is not None and _script.own


def in_script() -> bool:
    """Returns True if tfdist.run runs a script."""
    return _script is not None


def on_all_workers() -> bool:
    """Returns True where code runs that all of several workers run: the script's, in the main thread."""
    return (
        _script is not None
        and not _script.own
        and _script.cluster.num_workers > 1
        and not cluster_lib.on_this_worker_only()
        and threading.current_thread() is threading.main_thread()
    )


def draws_for_all() -> bool:
    """Returns True where all workers draw the same: in the main thread, and not where one worker runs alone."""
    return not cluster_lib.on_this_worker_only() and threading.current_thread() is threading.main_thread()


def reads_clock_for_all() -> bool:
    """Returns True if a line of the script asks for the time, outside of callbacks, which often measure times."""
    return _script is not None and not _script.in_callback and bool(calling_line())


def calling_line() -> str:
    """Returns the place of the script that calls, such as "train.py:12"; "" if a library calls, or a worker alone."""
    if not on_all_workers():
        return ""
    frame = inspect.currentframe()
    while frame is not None:
        file, module = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if not file.startswith(_HERE) and module not in _TRANSPARENT and not module.startswith("h5py."):
            break
        frame = frame.f_back
    place = "" if frame is None else os.path.abspath(frame.f_code.co_filename)
    if not place.startswith(_script.directory) or place.startswith(_LIBRARIES):
        return ""
    return f"{os.path.basename(place)}:{frame.f_lineno}"


def meet(place: str) -> None:
    """Waits until all workers are at `place` of the script. Collective.

    Raises:
        RuntimeError: another worker is at another place.
    """
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
    return os.path.abspath(os.fsdecode(path)).startswith(os.path.join(tempfile.gettempdir(), ""))


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
    if not owns(path):
        return collective_guard.result(_script.cluster)
    with running(), cluster_lib.on_one_worker(f"what {place} writes", "call it outside"):
        found = collective_guard.tried(function)
    if _script.cluster.is_chief:
        collective_guard.announce(_script.cluster, found)
    else:
        collective_guard.result(_script.cluster)
    return found.value()
