"""A child process of the embedded stack: Valkey, the API, the rescuer or a worker."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from pathlib import Path

from omni_jobs.cores import use_batch_policy

VALKEY, API, RESCUER = "valkey", "api", "rescuer"  # the names of three children; all others are workers

BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # pauses before the first restart, the second, …
UMASK = 0o077  # only the stack's user may read its files
STEADY_S = 60.0  # after being ready for this long, the next crash counts as the first


class ChildState(StrEnum):
    """The states of a child, in the order of its life."""

    WAITING = "waiting"  # not started, because another child must be ready first
    STARTING = "starting"  # the process runs and does not serve yet
    READY = "ready"  # the process serves
    RESTARTING = "restarting"  # the process died; the next one starts after a pause
    STOPPING = "stopping"  # the process was asked to stop, or is killed on purpose
    STOPPED = "stopped"  # the process ended after it was asked to
    FAILED = "failed"  # the process died or was not ready in time, and the stack gave up


@dataclass(frozen=True, slots=True)
class ChildView:
    """A snapshot of a child, for an operator: its state, process id, restarts and log file at one moment."""

    name: str
    state: ChildState
    pid: int | None
    start_s: float | None  # seconds that its last start took, or has taken so far; None before the first
    restarts: int
    log: Path


@dataclass(eq=False, repr=False)
class Child:
    """A process that the embedded stack keeps running, in a session of its own, with its state and its log file.

    Only the supervisor's thread may use this object; any thread may call ``view``.
    """

    name: str
    command: Sequence[str]
    _: KW_ONLY
    environment: Mapping[str, str]
    directory: Path  # the process works in it
    log: Path
    pass_fds: Sequence[int] = ()  # the process inherits these
    pipeline: str | None = None  # the label of a worker's; None for the children that all pipelines need
    state: ChildState = field(default=ChildState.WAITING, init=False)
    restarts: int = field(default=0, init=False)
    restart_at: float = field(default=0.0, init=False)  # of one in RESTARTING: its next start, by time.monotonic()
    _crashes: int = field(default=0, init=False)  # in a row
    _is_unplugged: bool = field(default=False, init=False)  # the process is killed on purpose
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started_at: float | None = field(default=None, init=False)
    _ready_at: float | None = field(default=None, init=False)
    _ended_at: float | None = field(default=None, init=False)
    _log_start: int = field(default=0, init=False)

    @property
    def pid(self) -> int | None:
        """The id of the last process, and of the session that it leads; None before the first start."""
        return self._process.pid if self._process else None

    @property
    def runs(self) -> bool:
        """True while a process of this child runs."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_in_words(self) -> str:
        """How the last process ended: ``signal SIGKILL`` or ``exit status 1``."""
        status = self._process.returncode if self._process else None
        if status is None or status >= 0:
            return f"exit status {status}"
        is_named = -status in set(signal.Signals)  # most real-time signals have no name
        return f"signal {signal.Signals(-status).name if is_named else -status}"

    def start(self, on_exit: Callable[[int], None]) -> int:
        """Start a process of this child, and return its id. Raises OSError if the system starts none, or no thread.

        Once the process has ended, a thread calls ``on_exit`` with that id.
        """
        self._started_at, self._ready_at, self._ended_at = time.monotonic(), None, None
        self._is_unplugged = False
        self.log.parent.mkdir(exist_ok=True, mode=0o700)  # somebody may have removed it
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self.pass_fds,
                umask=UMASK,
            )
        if self.name != API:  # the API competes with its decoders, and people wait for its answers
            use_batch_policy(self._process.pid)
        self.state = ChildState.STARTING
        process = self._process

        def wait() -> None:
            process.wait()
            self._ended_at = time.monotonic()
            on_exit(process.pid)

        try:
            threading.Thread(target=wait, name=f"wait-{self.name}", daemon=True).start()
        except RuntimeError as error:
            process.kill()
            process.wait()
            raise OSError(f"no thread to wait for it: {error}") from None
        return process.pid

    def mark_ready(self) -> None:
        """Set the state to READY: the supervisor calls this once the process serves."""
        self._ready_at = time.monotonic()
        self.state = ChildState.READY

    def schedule_restart(self) -> float:
        """Set the state to RESTARTING, and ``restart_at`` to the end of a pause that grows with each crash in a row.

        There is no pause after ``unplug``. Return the pause in seconds.
        """
        pause_s = 0.0 if self._is_unplugged else self._pause_after_crash()
        self.restart_at = time.monotonic() + pause_s
        self.restarts += 1
        self.state = ChildState.RESTARTING
        return pause_s

    def _pause_after_crash(self) -> float:
        if self._ready_at is not None and time.monotonic() - self._ready_at > STEADY_S:
            self._crashes = 0
        self._crashes += 1
        return BACKOFF_S[min(self._crashes, len(BACKOFF_S)) - 1]

    def ask_to_stop(self) -> None:
        """Set the state to STOPPING and send the process SIGTERM, if it runs. It ends its own children itself."""
        if self._process is not None and self.runs:
            self.state = ChildState.STOPPING
            self._process.terminate()

    def kill(self) -> None:
        """Send the process SIGKILL, if it runs; it ends as one that died."""
        if self._process is not None:
            self._process.kill()

    def unplug(self) -> None:
        """Set the state to STOPPING and kill the process. Another starts at once, because the death is no crash."""
        self._is_unplugged = True
        self.state = ChildState.STOPPING
        self.kill()

    def last_lines(self, count: int = 20) -> list[str]:
        """Return up to ``count`` last lines that the log got since the last start; none if it cannot be read."""
        with suppress(OSError), open(self.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - 64 * 1024))
            return log.read().decode("utf-8", errors="replace").splitlines()[-count:]
        return []

    def view(self) -> ChildView:
        """Return a snapshot of the child. Any thread may call this."""
        until = self._ready_at or self._ended_at or time.monotonic()
        start_s = None if self._started_at is None else until - self._started_at
        return ChildView(self.name, self.state, self.pid, start_s, self.restarts, self.log)
