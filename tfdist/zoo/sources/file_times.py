"""A hash of the sizes and times of files, by which a run notices that they have changed."""

import hashlib
import os
from collections.abc import Callable

# Files that are looked at, evenly spaced: on a parallel file system each costs up to a millisecond.
_MOST_FILES = 10_000


def of_files(count: int, path: Callable[[int], str]) -> str:
    """Returns a hash of the sizes and modification times of `count` files, or of 10,000 of them; "" if they are remote.

    Args:
        path: number -> the file with this number.

    Raises:
        OSError: a file cannot be read.
    """
    paths = [path(number) for number in range(0, count, -(-count // _MOST_FILES))]
    if any("://" in one for one in paths):
        return ""
    found = [(status.st_size, status.st_mtime_ns) for status in map(os.stat, paths)]
    return hashlib.sha256(repr((count, found)).encode()).hexdigest()[:16]
