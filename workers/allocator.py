"""The C allocator of a process whose model runs on the CPU: what one batch freed, the next gets.

glibc gives large blocks back to the kernel as they are freed, by limits that follow what the
process has freed before. A model frees and asks for the same tens of megabytes in every layer:
where the limits stay low, each page of them is faulted in and zeroed anew every time.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
_KEPT_BYTES = 1 << 30  # at the heap's end, before any of it goes back
_IN_HEAP_BYTES = 32 << 20  # a larger block is mapped by itself; mallopt(3) knows no higher limit
_HEAP_BYTES = 64 << 20  # of a thread; with a pad as large, none that is free again is given back
_LIMITS = ((_M_MMAP_THRESHOLD, _IN_HEAP_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_TOP_PAD, _HEAP_BYTES))
_BY_OPERATOR = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep up to 1 GiB of what it frees. False, and nothing is changed, where the
    environment sets the limits, or where the C library is another: tcmalloc and jemalloc keep it anyway.
    """
    if any(name in os.environ for name in _BY_OPERATOR):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(option, limit) for option, limit in _LIMITS)
