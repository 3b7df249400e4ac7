"""``cpu_s``: the processor time of a process."""

import os
from pathlib import Path
from typing import Final

__all__ = ["cpu_s"]

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the seconds of a core that a process has used since its start, in user's and in system's time."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
