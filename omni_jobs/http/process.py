"""What the API asks of its own process: of the C allocator, of the interpreter's threads, of the limit on open files.

glibc keeps freed memory for later allocations, in an arena per thread, and keeps larger blocks after each large block
that is freed. Bodies of tens of megabytes are rare here and come on many threads, so their memory would stay unused.

A small submit passes between threads some dozens of times, and waits each time until the interpreter switches to its
thread. A short switch interval costs a twentieth of the server's throughput, so it is set only while something large is
read or answered.
"""

import ctypes
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omni_jobs.settings import Settings

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_LIMITS = ((_M_MMAP_THRESHOLD, 1 << 20), (_M_TRIM_THRESHOLD, 1 << 20), (_M_ARENA_MAX, 2))
_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_SHORT_S = 0.0001

_lock = threading.Lock()
_usual_s: list[float] = []  # the interval before each of the contexts that are entered now
_MOST_KEPT = 1024


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


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Context manager: shorten the interpreter's switch interval until the last such context ends. Safe for threads."""
    with _lock:
        _usual_s.append(_usual_s[0] if _usual_s else sys.getswitchinterval())
        sys.setswitchinterval(_SHORT_S)
    try:
        yield
    finally:
        with _lock:
            sys.setswitchinterval(_SHORT_S if len(_usual_s) > 1 else _usual_s[0])
            _usual_s.pop()


def most_connections(settings: Settings) -> int:
    """Return ``max_connections`` of the settings, or fewer where this process may open few files.

    Half of the files, but 1024 at most, are left to the database, the object store and connections that are not
    accepted yet.
    """
    files = _files()
    return min(settings.max_connections, max(1, files - _files_kept(files)))


def most_unaccepted() -> int:
    """Return the most connections that the kernel may hold for the server to accept."""
    return max(16, _files_kept(_files()) // 2)


def raise_file_limit(settings: Settings) -> None:
    """Raise this process's limit on open files to 1024 above ``max_connections``, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + _MOST_KEPT
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _files() -> int:
    """Return how many files this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else files


def _files_kept(files: int) -> int:
    """Return how many of ``files`` are kept for other things than connections."""
    return min(_MOST_KEPT, files // 2)
