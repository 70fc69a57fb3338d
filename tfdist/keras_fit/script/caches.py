"""`dataset.cache(file)`: a process that is killed while it writes the file leaves a lock, at which later ones fail."""

import contextlib
import glob
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import tensorflow as tf

from tfdist.config.patching import patch
from tfdist.keras_fit import messages
from tfdist.keras_fit.script import context


@contextlib.contextmanager
def forget_killed_writers() -> Iterator[None]:
    """In the block, `cache` removes the lock of its file if the process that held it has been killed."""
    with patch(tf.data.Dataset, "cache", _cache):
        yield


def _cache(original: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    file = inspect.signature(original).bind(*args, **keywords).arguments.get("filename")
    if isinstance(file, str | os.PathLike) and os.fspath(file):
        beginning = glob.escape(os.path.abspath(file))
        locks = glob.glob(f"{beginning}_*.lockfile")
        # Its writer has these files open. TensorFlow locks a file for good, and knows no owner.
        parts = {os.path.realpath(part) for part in glob.glob(f"{beginning}_*.tempstate*")}
        if locks and not _is_open(parts):
            for path in (*locks, *parts):
                with context.running(), contextlib.suppress(OSError):  # Each worker has files of its own.
                    os.unlink(path)
            messages.say(f"the cache {file} was not complete: a process was killed while it wrote it. It begins anew")
    return original(*args, **keywords)


def _is_open(files: set[str]) -> bool:
    """Returns whether a process of this host has one of these files open."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not files.isdisjoint(one.path for one in process.open_files()):
                return True
    return False
