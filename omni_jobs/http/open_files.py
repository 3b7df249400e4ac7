"""How many connections the files that a process may open allow, and ``raise_file_limit``."""

import resource
import sys

from omni_jobs.settings import Settings

_MOST_KEPT = 1024


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
