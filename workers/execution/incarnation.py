"""Incarnation: a process's pid with its start time and the space of the pid, which together name one process.

A pid alone names another process after a restart, in another container and on another host. A worker's row
keeps these values, so that a later worker can tell whether it lives. Without /proc they are None: not known.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

logger = logging.getLogger(__name__)

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
    """Return the start of this process, in ticks since the boot, for its worker's row. None: not known."""
    with suppress(OSError):
        return started(os.getpid())
    return None


def started(pid: int) -> int | None:
    """Return the start of the process of this pid, in ticks since the boot. None: there is none, or a zombie.

    A worker's row keeps it, so that the slot's next worker does not take another process of this pid for its holder.
    Raises OSError without /proc, when it hides other users' processes, or when no more files can be opened.
    """
    found = _stat(pid)
    return None if found is None else found[1]


def state(pid: int, space: str | None, start: int | None) -> Literal["runs", "stopped", "gone"] | None:
    """Return the state of the process that this pid, its space and its start name. None: nobody can tell from here.

    "runs"; "stopped": a signal or a debugger holds it; "gone": it has ended, and the pid may be another process's.
    """
    if start is None or space is None or space != pid_space():
        return None
    try:
        found = _stat(pid)
    except OSError as error:
        logger.warning("nobody can tell whether process %d runs: %s", pid, error)
        return None
    if found is None or found[1] != start:
        return "gone"
    return "stopped" if found[0] in _STOPPED else "runs"


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the process's state, a letter, and its start; None for a zombie or no such process. Raises OSError."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        try:
            with suppress(PermissionError):
                os.kill(pid, 0)
        except ProcessLookupError:
            return None
        raise  # it is there, and /proc hides it (hidepid)
    fields = text.rpartition(")")[2].split()  # the name before stands in brackets and may hold anything
    return None if fields[0] in _DEAD else (fields[0], int(fields[19]))
