"""Processes, and a supervisor that restarts what dies: what systemd or compose do for an operator."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from omni_jobs.stack import sentinel

__all__ = ["Exit", "Supervised", "Supervisor"]

RESTART_AFTER_S = 0.2
POLL_S = 0.03


@dataclass(frozen=True)
class Exit:
    """One end of a process; ``wanted``: a fault or the stack's stop brought it about."""

    name: str
    pid: int
    status: int
    wanted: bool
    at: float  # time.time()


@dataclass
class Supervised:
    """A process that is kept running, in a session of its own. ``start`` and the rest are the supervisor's."""

    name: str
    command: Callable[[], Sequence[str | Path]]
    log: Path
    environment: Callable[[], Mapping[str, str]] = lambda: dict(os.environ)
    user: str | None = None
    before_start: Callable[[], None] = lambda: None
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0  # time.time() of the last start
    held: bool = False  # not to be restarted for now
    restart_at: float = 0.0
    starts: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    doomed: set[int] = field(default_factory=set)  # pids that a fault has told to end

    @property
    def pid(self) -> int:
        """Of the last start."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was never started")
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> int:
        self.before_start()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [str(word) for word in self.command()],
                env=dict(self.environment()),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/" if self.user is not None else None,
                user=self.user,
                extra_groups=[] if self.user is not None else None,
            )
        self.started_at = time.time()
        self.starts += 1
        return self.process.pid

    def signal(self, number: int) -> int:
        """Send it to the process alone; its pid. One that is ended by it is restarted unless held."""
        with self.lock:
            pid = self.pid
            if number not in (signal.SIGSTOP, signal.SIGCONT):
                self.doomed.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            return pid

    def wait_gone(self, within_s: float) -> bool:
        """Whether the process of the last start has ended."""
        deadline = time.monotonic() + within_s
        while self.runs:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


class Supervisor:
    """Keeps processes running until ``close``; its sentinel ends them when this process is killed."""

    def __init__(self) -> None:
        self.exits: list[Exit] = []
        self._processes: list[Supervised] = []
        self._sessions: set[int] = set()
        self._closing = threading.Event()
        self._sentinel = subprocess.Popen(
            [sys.executable, "-I", "-S", sentinel.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def add(self, process: Supervised) -> Supervised:
        """Start it and keep it running."""
        with process.lock:
            self._start(process)
        self._processes.append(process)
        return process

    def adopt(self, pid: int) -> None:
        """A session that is not restarted, but ended with the rest."""
        self._sessions.add(pid)
        self._tell(f"session {pid}")

    def forget(self, pid: int) -> None:
        """A session that was adopted has ended."""
        self._sessions.discard(pid)
        self._tell(f"forget {pid}")

    def hold(self, process: Supervised) -> None:
        """Restart it no more, until ``release``."""
        process.held = True

    def release(self, process: Supervised) -> None:
        process.held = False

    def unexpected(self) -> list[Exit]:
        """Ends that no fault brought about directly, a fenced worker's for one."""
        return [found for found in self.exits if not found.wanted]

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self._thread.join()
        sentinel.end_sessions(self._sessions, grace_s=0.0)
        for process in self._processes:
            if process.process is not None:
                process.process.wait()
        self._tell("done")
        if self._sentinel.stdin is not None:
            self._sentinel.stdin.close()
        self._sentinel.wait()

    def _run(self) -> None:
        while not self._closing.wait(POLL_S):
            for process in list(self._processes):
                self._look_after(process)

    def _look_after(self, process: Supervised) -> None:
        with process.lock:
            if process.runs or process.process is None:
                return
            now = time.monotonic()
            pid = process.pid
            if pid in self._sessions:
                self._sessions.discard(pid)
                self._tell(f"forget {pid}")
                status = process.process.returncode
                self.exits.append(Exit(process.name, pid, status, pid in process.doomed, time.time()))
                process.restart_at = now + RESTART_AFTER_S
            if not process.held and now >= process.restart_at:
                self._start(process)

    def _start(self, process: Supervised) -> None:
        self.adopt(process.start())

    def _tell(self, order: str) -> None:
        if self._sentinel.stdin is not None:
            with suppress(BrokenPipeError):
                self._sentinel.stdin.write(order + "\n")
                self._sentinel.stdin.flush()
