"""Configures malloc to keep freed memory: gRPC needs its buffers again in every step. Imports no TensorFlow.

By default glibc maps each large buffer and unmaps it when it is freed; the kernel then zeroes every page of the next
one, and an all-reduce between workers takes twice as long (docs/speed.md). The settings are those of MALLOC_MMAP_MAX_,
MALLOC_TRIM_THRESHOLD_ and MALLOC_ARENA_MAX, applied in the running process; child processes do not inherit them.
"""

import ctypes
from collections.abc import Mapping

from tfdist import config as config_lib

# Parameters of mallopt(3) and their values: no separate mappings, no memory returned to the kernel, and one arena for
# all threads, because other arenas cannot hold blocks above 64 MB.
_SETTINGS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_ARENA_MAX": (-8, 1)}
# If a user sets these, malloc stays as it is.
_CHOSEN = ("MALLOC_", "GLIBC_TUNABLES")

_enabled: bool | None = None


def keep_freed_memory(options: config_lib.ClusterOptions, env: Mapping[str, str]) -> bool:
    """Configures malloc to keep freed memory, unless the user configures malloc; best before TensorFlow is imported.

    Args:
        options: if `keep_freed_memory` is False, nothing is changed.
        env: if it configures malloc, or preloads another allocator, nothing is changed.

    Returns:
        True if malloc keeps freed memory. The first call of a process decides; later calls return the same.
    """
    global _enabled
    if _enabled is None:
        configured = any(name.startswith(_CHOSEN) for name in env) or "malloc" in env.get("LD_PRELOAD", "")
        _enabled = options.keep_freed_memory and not configured and _set()
    return _enabled


def _set() -> bool:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # macOS, or musl: other allocators.
        return False
    return all([libc.mallopt(parameter, value) for parameter, value in _SETTINGS.values()])
