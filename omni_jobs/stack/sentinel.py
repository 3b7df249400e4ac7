"""The embedded stack's sentinel: a small process that ends the stack's processes if their supervisor is killed.

It reads orders from its standard input, which only the supervisor holds open:

    session PID  a child was started; it leads the session PID
    forget PID   that child and its session have ended
    done         the stack has stopped: leave

If the input ends without ``done``, the supervisor was killed (``kill -9``). Every process of the sessions then gets
SIGTERM and, after a grace period, SIGKILL, and the directories that the command line names are removed. Processes are
found by session, because a grandchild (an engine process of vLLM) may change its parent and its process group, but
keeps its session.

The module uses only the standard library, because it runs as ``python -I -S sentinel.py`` to be small.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

GRACE_S = 10.0
TRACKERS_S = 10.0  # for resource trackers, which clean up after killed processes
KILL_S = 5.0  # for killed processes to end
STOP_S = 5.0  # for a sentinel to leave


class Sentinel:
    """A running sentinel process, as the process of the embedded stack sees it."""

    def __init__(self, *, lock_fd: int | None, remove: Sequence[Path]) -> None:
        """Start the sentinel, which removes the directories ``remove`` if this process is killed.

        The sentinel inherits ``lock_fd``, so that the data directory stays locked until all sessions have ended.
        """
        self._lock_fd = lock_fd
        self._remove = remove
        self.sessions: set[int] = set()  # those that it watches
        self._start()

    def _start(self) -> None:
        import subprocess  # the sentinel itself needs neither

        from omni_jobs.stack.environments import bare_environment

        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *self._remove],
            env=bare_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,  # an order that a killed sentinel did not take must not wait in a buffer until ``stop``
            pass_fds=() if self._lock_fd is None else (self._lock_fd,),
        )

    def watch(self, session: int) -> None:
        """Make the sentinel end this session, too, if this process is killed."""
        self.sessions.add(session)
        self._send(f"session {session}")

    def forget(self, session: int) -> None:
        """Make the sentinel leave this session alone, because it has ended."""
        self.sessions.discard(session)
        self._send(f"forget {session}")

    def renew(self) -> bool:
        """Start another sentinel with all sessions if this one was killed; return whether one was started."""
        if self._process.poll() is None:
            return False
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._start()
        except OSError:  # no memory or too many processes: the next call tries again
            return False
        for session in self.sessions:
            self._send(f"session {session}")
        return True

    def stop(self) -> None:
        """Tell the sentinel that the stack has stopped, and wait for its end. It kills and removes nothing."""
        self._send("done")
        if self._process.stdin is not None:
            self._process.stdin.close()
        deadline = time.monotonic() + STOP_S
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self._process.kill()  # somebody has stopped it
        self._process.wait()

    def _send(self, order: str) -> None:
        """Send an order of the module's docstring; do nothing if the sentinel was killed."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError, ValueError):  # the stack goes on without it; ValueError: no other started
                self._process.stdin.write(f"{order}\n".encode())


def processes_of(sessions: Collection[int]) -> list[int]:
    """Return the ids of the living processes of these sessions, without zombies."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # the process ended meanwhile
                stat = Path("/proc", name, "stat").read_text(encoding="utf-8", errors="replace")
                state, _, _, session = stat.rpartition(")")[2].split()[:4]
                if state not in "ZX" and int(session) in sessions:
                    pids.append(int(name))
    return pids


def end_sessions(sessions: Collection[int], *, grace_s: float) -> list[int]:
    """End these sessions' processes: SIGTERM, then SIGKILL after ``grace_s`` seconds; 0 sends SIGKILL alone.

    Return the ids of the processes that still live.
    """
    if grace_s > 0:
        _signal(processes_of(sessions), signal.SIGTERM)
        _wait_gone(sessions, grace_s)
    # A resource tracker of Python outlives the processes it serves for a moment, to remove their shared memory.
    _signal([pid for pid in processes_of(sessions) if not is_resource_tracker(pid)], signal.SIGKILL)
    if _wait_gone(sessions, TRACKERS_S):
        _signal(processes_of(sessions), signal.SIGKILL)
    return _wait_gone(sessions, KILL_S)


def _signal(pids: Collection[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped, as by SIGSTOP, and has not been continued. A debugger's is not."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"


def is_resource_tracker(pid: int) -> bool:
    """Return whether a process is a resource tracker of Python, which cleans up once those it serves have ended."""
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
    """Run the sentinel: follow the orders on standard input, and clean up if it ends without ``done``."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor handles Ctrl-C and a service manager's stop
    sessions: set[int] = set()
    for line in sys.stdin:
        order, _, value = line.rstrip("\n").partition(" ")
        if order == "session":
            sessions.add(int(value))
        elif order == "forget":
            sessions.discard(int(value))
        elif order == "done":
            return
    end_sessions(sessions, grace_s=GRACE_S)
    for directory in sys.argv[1:]:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
