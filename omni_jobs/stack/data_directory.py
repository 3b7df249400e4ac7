"""The embedded stack's data directory: what lies where, and that one stack at a time has it.

stack.lock         held by the running stack, and by its sentinel until its last process is gone
stack.json         where the running stack serves; for this user's eyes
omni-jobs.sqlite   the jobs
objects/           payloads, media and artifacts
valkey/            the broker's file and configuration
logs/              one file per child process, and the one before it
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from omni_jobs.errors import StackError

__all__ = ["DataDirectory", "close_to_others", "running_stack"]

LOCK_WAIT_S = 15.0  # a killed predecessor's sentinel may still be ending its processes
POLL_S = 0.1


def running_stack(path: Path) -> dict[str, Any] | None:
    """What the stack that runs in this directory says of itself: ``url``, ``pid``. None when none runs."""
    path = path.expanduser()
    try:
        with open(path / "stack.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError, ValueError):
            found = json.loads((path / "stack.json").read_text(encoding="utf-8"))
            return found if isinstance(found, dict) else None
    except OSError:
        pass
    return None


def close_to_others(path: Path) -> None:
    """Make the directory, or close the one that is there: jobs lie in it for this user alone.

    One that holds other things stays as it is. Raises StackError for one that is open and not ours to close, and
    OSError.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = path.stat()
    if not found.st_mode & 0o077:
        return
    is_ours = os.geteuid() in (0, found.st_uid)
    why = "and belongs to another user"
    if is_ours:
        why = "and holds other things than a stack's"
        if not any(path.iterdir()) or any((path / name).exists() for name in ("stack.lock", "omni-jobs.sqlite")):
            path.chmod(0o700)
            if not path.stat().st_mode & 0o077:
                return
            why = "and its file system keeps it so"
    raise StackError(
        f"the data directory {path} is open to other users (mode {found.st_mode & 0o7777:o}) {why}: "
        f"close it with chmod 700, or choose another --data-dir"
    )


class DataDirectory:
    """One directory, this process's while ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.logs = self.path / "logs"
        self.valkey = self.path / "valkey"
        self._lock: int | None = None

    @property
    def lock_fd(self) -> int | None:
        """The lock's file descriptor: whoever inherits it keeps the directory taken."""
        return self._lock

    def open(self) -> None:
        """Make the directory and take its lock.

        Raises StackError when another stack has it, or when other users can look into it and it is not ours to close.
        """
        try:
            close_to_others(self.path)
            for directory in (self.logs, self.valkey):
                directory.mkdir(exist_ok=True, mode=0o700)
            lock = os.open(self.path / "stack.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StackError(f"the data directory cannot be used: {error}") from error
        try:
            self._take(lock)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def _take(self, lock: int) -> None:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
                if _lives(owner) or time.monotonic() > deadline:
                    raise StackError(
                        f"another stack runs in {self.path} (process {owner or 'unknown'}): "
                        "stop it, or choose another --data-dir"
                    ) from None
                time.sleep(POLL_S)

    def announce(self, **facts: Any) -> None:
        """Write ``stack.json``, readable by this user alone."""
        partial = self.path / "stack.json.partial"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=2)
        partial.replace(self.path / "stack.json")

    def log_of(self, name: str) -> Path:
        """A fresh log file's path; the last start's is kept beside it as ``.1``."""
        log = self.logs / f"{name}.log"
        with suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.1"))
        return log

    def close(self, *, remove: bool = False) -> None:
        """Give the directory up; with ``remove`` it goes."""
        if self._lock is None:
            return
        with suppress(FileNotFoundError):
            (self.path / "stack.json").unlink()
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


def _lives(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
