"""Makes malloc keep freed memory, which gRPC's buffers need again in every step. Imports no TensorFlow.

glibc maps each large buffer anew and hands it back when it is freed; the kernel then has to fill it with zeros page by
page. Two workers that sum 100 MB over loopback take 440 ms so, and 180 ms where malloc keeps what it has (one core
each). tcmalloc takes 333 ms, jemalloc 590 ms. The settings are those of MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_ and
MALLOC_ARENA_MAX, made in the running process: nothing has to be started anew, and no process inherits them.
"""

import ctypes
from collections.abc import Mapping

from tfdist import config as config_lib

# Parameters of mallopt(3), and their values: no buffer is mapped by itself, nothing is handed back, one heap for all
# threads, because only the first can hold what is larger than 64 MB.
_SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1)}
# A user who sets these has a malloc of their own choice.
_CHOSEN = ("MALLOC_", "GLIBC_TUNABLES")

_done: bool | None = None


def keep_freed(options: config_lib.Cluster, env: Mapping[str, str]) -> bool:
    """Makes malloc keep what is freed, as far as the user leaves it to us; best before TensorFlow is imported.

    Args:
        options: nothing is done where `keep_freed_memory` is False.
        env: nothing is done where it sets malloc, or names a library to be loaded first that may bring its own.

    Returns:
        Whether it is so. A process decides once: the first call's answer is that of all.
    """
    global _done
    if _done is None:
        wanted = getattr(options, "keep_freed_memory", False)  # The config may still be wrong; that is said later.
        own = any(name.startswith(_CHOSEN) for name in env) or "malloc" in env.get("LD_PRELOAD", "")
        _done = wanted and not own and _set()
    return _done


def _set() -> bool:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # macOS, or musl: other allocators.
        return False
    return all([libc.mallopt(parameter, value) for parameter, value in _SETTINGS.values()])
