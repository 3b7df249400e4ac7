"""The C allocator of the API's process: what a large body took goes back to the kernel once it is answered.

glibc keeps freed memory for the next that asks, in an arena per thread, and learns from each large block that is freed
to keep larger ones. Bodies of tens of megabytes are rare here and come on many threads: what they leave would stay.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["give_freed_memory_back", "trim"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LIMITS = ((_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 1 << 20), (_M_ARENA_MAX, 2))
_BY_OPERATOR = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def give_freed_memory_back() -> bool:
    """Map blocks of a MiB and more by themselves, and keep few arenas.

    False, and nothing is changed, where the environment sets the limits, or where the C library has no mallopt.
    """
    if any(name in os.environ for name in _BY_OPERATOR):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, limit) for option, limit in _LIMITS)


def trim() -> None:
    """Give back what is free in between as well; takes some milliseconds. Nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
