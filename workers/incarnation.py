"""Which process a worker is: a pid alone names another one after a restart, in another container, on another host.

Where there is no /proc nothing is known.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["pid_space", "started"]

_PROC = Path("/proc")
_DEAD = ("Z", "X")  # ended, and not yet collected by its parent


def pid_space() -> str | None:
    """Where this process's pid means something: this boot of the kernel, this pid namespace. None: not known."""
    with suppress(OSError):
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    return None


def started(pid: int) -> int | None:
    """When the process of this pid started, in ticks since the boot. None: there is none, or only its remains."""
    with suppress(OSError, ValueError, IndexError):
        # The name stands in brackets and may hold anything.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in _DEAD else int(fields[19])
    return None
