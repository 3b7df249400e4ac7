"""The C allocator of the API's process, so that the memory of a large body goes back to the kernel after its answer.

glibc keeps freed memory for later allocations, in an arena per thread, and keeps larger blocks after each large block
that is freed. Bodies of tens of megabytes are rare here and come on many threads, so their memory would stay unused.
"""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LIMITS = ((_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 1 << 20), (_M_ARENA_MAX, 2))
_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def give_freed_memory_back() -> bool:
    """Make glibc return freed blocks of a MiB and more at once, and use two arenas. Return whether it accepted all.

    Do nothing and return False if the environment configures glibc's allocator, or if there is no mallopt.
    """
    if any(name in os.environ for name in _VARIABLES):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, limit) for option, limit in _LIMITS)


def trim() -> None:
    """Give free memory between used blocks back to the kernel too, in some milliseconds. Do nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
