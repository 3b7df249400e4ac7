"""The embedded stack's data directory, which one stack at a time owns.

stack.lock         locked by the running stack, and by its sentinel until its last process has ended
stack.url          the running stack's URL; only its user can read it
omni-jobs.sqlite   the jobs
objects/           payloads, media and artifacts
valkey/            Valkey's append-only file and configuration
load-locks/        a lock for each GPU, which a worker holds while it loads its model there
rescuer.round      touched by the rescuer after each round that went well
logs/              the log of each child process, and as .log.1 that of the stack's start before
"""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from omni_jobs.errors import StackError

LOCK_WAIT_S = 15.0  # the sentinel of a killed stack may still be ending its processes
POLL_S = 0.1


def running_stack(path: Path) -> str | None:
    """Return the URL of the stack that runs in a directory, None without one.

    It is what ``stack.url`` says while the lock is held: after a kill, the killed stack's until the next one serves.
    """
    path = path.expanduser()
    try:
        with open(path / "stack.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError):
            return (path / "stack.url").read_text(encoding="utf-8")
    except OSError:
        pass
    return None


def make_private(path: Path) -> None:
    """Make a data directory that only this user can access, or take other users' access to an existing one away.

    Raises StackError if it stays open to other users: it belongs to another user, it holds other things than a
    stack's and is left as it is, or its file system keeps the mode. Raises OSError if it cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = path.stat()
    if not status.st_mode & 0o077:
        return
    why = "and belongs to another user"
    if os.geteuid() in (0, status.st_uid):
        why = "and holds other things than a stack's"
        if _is_of_a_stack(path):
            path.chmod(0o700)
            if not path.stat().st_mode & 0o077:
                return
            why = "and its file system keeps it so"
    raise StackError(
        f"the data directory {path} is open to other users (mode {status.st_mode & 0o7777:o}) {why}: "
        f"close it with chmod 700, or choose another --data-dir"
    )


def is_refused(path: Path) -> bool:
    """Return whether ``make_private`` would refuse a data directory as it is, and change nothing."""
    if not path.exists() or not path.stat().st_mode & 0o077:
        return False
    return os.geteuid() not in (0, path.stat().st_uid) or not _is_of_a_stack(path)


def _is_of_a_stack(path: Path) -> bool:
    """Return whether a directory is empty, or has a stack's files."""
    return not any(path.iterdir()) or any((path / name).exists() for name in ("stack.lock", "omni-jobs.sqlite"))


class DataDirectory:
    """The data directory of one embedded stack. This process owns it, by a lock, between ``open`` and ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.load_locks = self.path / "load-locks"
        self.logs = self.path / "logs"
        self.rescuer_beat = self.path / "rescuer.beat"
        self.valkey = self.path / "valkey"
        self.lock_fd: int | None = None  # while open; a process that inherits it keeps the directory locked

    def open(self) -> None:
        """Make the directory and lock it for this process.

        Raises StackError if another stack has it, if it stays open to other users, or if it cannot be used. Waits
        some seconds while the sentinel of a killed stack still holds the lock.
        """
        try:
            make_private(self.path)
            for directory in (self.logs, self.valkey):
                directory.mkdir(exist_ok=True, mode=0o700)
            lock = os.open(self.path / "stack.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StackError(f"the data directory cannot be used: {error}") from error
        try:
            self._lock_file(lock)
        except BaseException:
            os.close(lock)
            raise
        self.lock_fd = lock
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def _lock_file(self, lock: int) -> None:
        """Lock the file, or raise StackError: at once if its owner runs, after LOCK_WAIT_S if it does not."""
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(lock, 32, 0).decode(errors="replace").strip()
                if _is_alive(owner) or time.monotonic() > deadline:
                    raise StackError(
                        f"another stack runs in {self.path} (process {owner or 'unknown'}): "
                        "stop it, or choose another --data-dir"
                    ) from None
                time.sleep(POLL_S)

    def write_url(self, url: str) -> None:
        """Write the stack's URL to ``stack.url``, from which ``running_stack`` reads it; only this user can read it."""
        partial = self.path / "stack.url.partial"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(url)
        partial.replace(self.path / "stack.url")

    def new_log(self, name: str) -> Path:
        """Return the path of a child's log; rename the log of the stack's last start to ``.log.1`` first."""
        log = self.logs / f"{name}.log"
        with suppress(FileNotFoundError):
            log.replace(log.with_suffix(".log.1"))
        return log

    def close(self, *, remove: bool = False) -> None:
        """Remove ``stack.url``, with ``remove`` the whole directory, and release the lock. Safe to call twice."""
        if self.lock_fd is None:
            return
        with suppress(FileNotFoundError):
            (self.path / "stack.url").unlink()
        if remove:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock_fd)
        self.lock_fd = None


def _is_alive(pid: str) -> bool:
    if not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
