"""The supervisor's side of the sentinel (:mod:`omni_jobs.stack.sentinel`): start it, and send it orders."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["SentinelProcess"]


class SentinelProcess:
    """A running sentinel. If this process is killed, the sentinel ends the sessions and removes the directories."""

    def __init__(self, *, lock_fd: int | None, remove: Sequence[Path]) -> None:
        """Start the sentinel.

        Args:
            lock_fd: file descriptor of the data directory's lock, which the sentinel holds until all sessions ended.
            remove: directories that the sentinel removes if this process is killed.
        """
        script = Path(__file__).with_name("sentinel.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            pass_fds=() if lock_fd is None else (lock_fd,),
        )
        for directory in remove:
            self._send(f"remove {directory}")

    def watch(self, session: int) -> None:
        """End this session if this process is killed."""
        self._send(f"session {session}")

    def forget(self, session: int) -> None:
        """Stop watching a session, because all its processes have ended."""
        self._send(f"forget {session}")

    def stop(self) -> None:
        """Let the sentinel leave without ending or removing anything, and wait for its end."""
        self._send("done")
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _send(self, order: str) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # somebody killed the sentinel: the stack goes on without it
                self._process.stdin.write(order + "\n")
                self._process.stdin.flush()
