"""Which process a worker is: a pid alone names another one after a restart, in another container, on another host.

Where there is no /proc nothing is known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["is_stopped", "pid_space", "started"]

_PROC = Path("/proc")
_DEAD = ("Z", "X")  # ended, and not yet collected by its parent
_STOPPED = ("T", "t")  # by a signal or a debugger


def pid_space() -> str | None:
    """Where this process's pid means something: this boot of the kernel, this pid namespace. None: not known."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    return None


def own_start() -> int | None:
    """When this process started, in ticks since the boot. None: not known."""
    with suppress(OSError):
        return started(os.getpid())
    return None


def started(pid: int) -> int | None:
    """When the process of this pid started, in ticks since the boot. None: there is none, or only its remains.

    Raises OSError where that cannot be told: nothing may be read of other users' processes, or no more files opened.
    """
    fields = _status(pid)
    return None if fields is None or fields[0] in _DEAD else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Whether the process of this pid is held by a signal or a debugger, and so does nothing. Raises OSError."""
    fields = _status(pid)
    return fields is not None and fields[0] in _STOPPED


def _status(pid: int) -> list[str] | None:
    """The fields of ``stat`` from the state on; None when there is no such process. Raises OSError."""
    try:
        # The name stands in brackets and may hold anything.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if _is_there(pid):  # and /proc hides it (hidepid)
            raise
        return None


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
