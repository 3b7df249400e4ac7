"""One child process of the embedded stack: started in a session of its own, with its log file."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from omni_jobs.stack.cores import use_batch_policy

__all__ = ["UMASK", "Child", "ChildState", "ChildView"]

BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # what dies once is started anew at once
UMASK = 0o077  # what the stack writes is for its user alone
STEADY_S = 60.0  # ready for this long: the next crash counts as the first


class ChildState(StrEnum):
    """Where a child is in its life."""

    WAITING = "waiting"  # for another child to be ready
    STARTING = "starting"  # its process runs, it does not serve yet
    READY = "ready"
    RESTARTING = "restarting"  # it died; the next try waits out its backoff
    STOPPING = "stopping"  # asked to stop
    STOPPED = "stopped"  # it ended because it was asked to
    FAILED = "failed"  # it died, and the stack gave up


@dataclass(frozen=True, slots=True)
class ChildView:
    """What an operator sees of a child at one moment."""

    name: str
    state: ChildState
    pid: int | None
    start_s: float | None  # how long its last start took, or takes so far
    restarts: int
    log: Path


class Child:
    """A process the stack keeps running. Not thread-safe but for ``view``: its supervisor's thread owns it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: Path,
        pass_fds: Sequence[int] = (),
        batch_policy: bool = False,
    ) -> None:
        """``batch_policy``: put the process under SCHED_BATCH (:mod:`omni_jobs.stack.cores`)."""
        self.name = name
        self.command = list(command)
        self.log = log
        self.state = ChildState.WAITING
        self.restarts = 0
        self.restart_at = 0.0  # by time.monotonic(); of a child in RESTARTING
        self._crashes = 0  # in a row
        self._environment = dict(environment)
        self._directory = directory
        self._pass_fds = tuple(pass_fds)
        self._batch_policy = batch_policy
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at: float | None = None
        self._ready_at: float | None = None
        self._ended_at: float | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """The process, which leads a session of the same number; None before the first start."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode if self._process else None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def start(self, on_exit: Callable[[int], None]) -> int:
        """Start the process; ``on_exit`` gets its pid from a thread when it ends. Returns the pid."""
        with open(self.log, "ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=self._pass_fds,
                umask=UMASK,
            )
        if self._batch_policy:
            use_batch_policy(self._process.pid)
        self._started_at, self._ready_at, self._ended_at = time.monotonic(), None, None
        self.state = ChildState.STARTING
        process = self._process

        def wait() -> None:
            process.wait()
            self._ended_at = time.monotonic()
            on_exit(process.pid)

        threading.Thread(target=wait, name=f"wait-{self.name}", daemon=True).start()
        return process.pid

    def mark_ready(self) -> None:
        self._ready_at = time.monotonic()
        self.state = ChildState.READY

    def schedule_restart(self) -> None:
        """It died: the pause before the next start grows while it keeps dying."""
        if self._ready_at is not None and time.monotonic() - self._ready_at > STEADY_S:
            self._crashes = 0
        self.restart_at = time.monotonic() + BACKOFF_S[min(self._crashes, len(BACKOFF_S) - 1)]
        self._crashes += 1
        self.restarts += 1
        self.state = ChildState.RESTARTING

    def ask_to_stop(self) -> None:
        """SIGTERM to the process alone: it ends its own children in order."""
        if self._process is not None and self._process.returncode is None:
            self.state = ChildState.STOPPING
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of what the last start wrote to the log."""
        with suppress(OSError), open(self.log, "rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - 64 * 1024))
            return log.read().decode("utf-8", errors="replace").splitlines()[-count:]
        return []

    def view(self) -> ChildView:
        started, until = self._started_at, self._ready_at or self._ended_at or time.monotonic()
        start_s = None if started is None else until - started
        return ChildView(self.name, self.state, self.pid, start_s, self.restarts, self.log)
