"""Leftovers: processes that a killed worker left in its slot on this host.

Engine processes end with their worker by themselves (``workers.vllm_hooks``). One that
does not, because it hangs, would hold the device's memory against the successor. Every
process a worker starts carries the slot's mark in its environment, and nobody else's
does, so the successor can end them before it loads its own engine.

Where there is no /proc nothing is found.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["MARK", "end_leftovers", "mark_slot", "slot_mark"]

logger = logging.getLogger(__name__)

MARK = "OMNI_JOBS_STARTED_BY"
"""The environment variable in the processes a worker starts; not a setting."""

_GONE_WITHIN_S = 10.0
_PROC = Path("/proc")


def slot_mark(database_url: str, slot: str) -> str:
    """What names this slot of this deployment; gives nothing of the URL away."""
    return hashlib.sha256(f"{database_url}\0{slot}".encode()).hexdigest()[:32]


def mark_slot(mark: str) -> None:
    """Processes that this one starts from here on carry the mark."""
    os.environ[MARK] = mark


def end_leftovers(mark: str) -> list[int]:
    """Kill the processes that carry the mark, and wait until they are gone; their pids. Blocks."""
    found = _carriers(mark)
    for pid in found:
        logger.warning("process %d is left of a predecessor in this slot: killed", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_WITHIN_S
    while left := _carriers(mark):
        if time.monotonic() > deadline:
            logger.error("of a predecessor in this slot there are still the processes %s", left)
            break
        time.sleep(0.02)
    return found


def _carriers(mark: str) -> list[int]:
    """Living processes but this one; multiprocessing's resource trackers end by themselves when they have cleaned."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for directory in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # another user's, or it ended meanwhile
            if (
                entry in (directory / "environ").read_bytes().split(b"\0")
                and b"multiprocessing.resource_tracker" not in (directory / "cmdline").read_bytes()
                and int(directory.name) != os.getpid()
            ):
                found.append(int(directory.name))
    return found
