"""Incarnation: a process's pid with its start time and the space of the pid, which together name one process.

A pid alone names another process after a restart, in another container and on another host. Where there is no /proc
nothing is known.
"""

import os
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_DEAD = ("Z", "X")  # ended, and not yet collected by its parent
_STOPPED = ("T", "t")  # by a signal or a debugger


def pid_space() -> str | None:
    """Return the space in which this process's pid is unique: boot id and pid namespace. None: not known."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    return None


def own_start() -> int | None:
    """Return the start of this process, in ticks since the boot. None: not known."""
    with suppress(OSError):
        return started(os.getpid())
    return None


def started(pid: int) -> int | None:
    """Return the start of the process of this pid, in ticks since the boot. None: it is not there, or a zombie.

    Raises OSError when that cannot be read: of other users' processes, or because no more files can be opened.
    """
    fields = _status(pid)
    return None if fields is None or fields[0] in _DEAD else int(fields[19])


def is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger holds the process of this pid, so that it does nothing. Raises OSError."""
    fields = _status(pid)
    return fields is not None and fields[0] in _STOPPED


def _status(pid: int) -> list[str] | None:
    """Return the fields of ``stat`` from the state on; None when there is no such process. Raises OSError."""
    try:
        # The name stands in brackets and may hold anything.
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if _exists(pid):  # and /proc hides it (hidepid)
            raise
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
