"""The embedded stack's sentinel: a small process that outlives a killed supervisor and ends what it left.

It reads orders from its standard input, which only the supervisor holds open:

    session PID       a child was started; it leads the session PID
    forget PID        that child and its session are gone
    remove DIRECTORY  to be removed at the end
    done              all is stopped: leave

When the input ends without ``done``, the supervisor is gone (``kill -9``): every
process of the sessions gets SIGTERM, after a grace period SIGKILL, and the
directories are removed. Sessions, not process groups or parents: a grandchild
(vLLM's engine processes) keeps its session whatever else becomes of it.

Only the standard library: it runs as ``python -I -S sentinel.py`` and costs little.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

__all__ = ["end_sessions", "processes_of"]

GRACE_S = 10.0
TRACKERS_S = 10.0  # for clean-up after the kill
KILL_S = 5.0  # how long killed processes may take to go


def processes_of(sessions: Collection[int]) -> list[int]:
    """The living processes of these sessions; zombies do not count.

    Without /proc (macOS): the sessions whose leader's process group still has a member.
    """
    if not sessions:
        return []
    if not os.path.isdir("/proc/self"):
        return [session for session in sessions if _group_lives(session)]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
                state, _, _, session = stat.rpartition(")")[2].split()[:4]
                if state not in "ZX" and int(session) in sessions:
                    found.append(int(name))
    return found


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS, when only zombies are left
        return False
    return True


def end_sessions(sessions: Collection[int], *, grace_s: float) -> list[int]:
    """SIGTERM, wait at most ``grace_s`` seconds, SIGKILL; what is left even then."""
    if grace_s > 0:
        _signal(processes_of(sessions), signal.SIGTERM)
        _wait_gone(sessions, grace_s)
    # Python's resource trackers outlive what they watch for a moment, to remove its shared memory.
    _signal([pid for pid in processes_of(sessions) if not _is_resource_tracker(pid)], signal.SIGKILL)
    if _wait_gone(sessions, TRACKERS_S):
        _signal(processes_of(sessions), signal.SIGKILL)
    return _wait_gone(sessions, KILL_S)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    send: Callable[[int, int], None] = os.kill if os.path.isdir("/proc/self") else os.killpg
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            send(pid, number)


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def _wait_gone(sessions: Collection[int], limit_s: float) -> list[int]:
    deadline = time.monotonic() + limit_s
    while (left := processes_of(sessions)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C and a service manager's stop are the supervisor's
    sessions: set[int] = set()
    directories: list[str] = []
    for line in sys.stdin:
        order, _, value = line.rstrip("\n").partition(" ")
        if order == "session":
            sessions.add(int(value))
        elif order == "forget":
            sessions.discard(int(value))
        elif order == "remove":
            directories.append(value)
        elif order == "done":
            return
    end_sessions(sessions, grace_s=GRACE_S)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
