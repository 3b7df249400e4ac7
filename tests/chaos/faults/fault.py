"""A fault: one function, which says what it does to its target, and what it works with meanwhile.

A fault owns its target while it lasts: no other strikes the same worker, server or service until it has been undone.
Faults of different targets overlap.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import exc

from tests.chaos.processes import Supervised
from tests.chaos.recovery import Held, Recoveries
from tests.chaos.stack import ChaosStack, Worker

Target = Literal[
    "worker",
    "echo worker",
    "clocked worker",
    "server",
    "api",
    "rescuer",
    "valkey",
    "postgres",
    "s3",
    "disk",
    "sqlite",
    "cable",
    "tenants",
    "versions",
    "schema",
]


class Nothing(Exception):
    """Why a fault came to nothing."""


class NotUndone(Exception):
    """What a fault expects of the system did not come about."""


class Chaos:
    """What a fault works with: the stack, a target, random numbers of its own, time."""

    def __init__(
        self,
        stack: ChaosStack,
        recoveries: Recoveries,
        pick: random.Random,
        stopping: threading.Event,
        others_since: Callable[[float], set[str]],
        owned: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.stack = stack
        self.others_since = others_since  # what was struck since then (time.time()), or still is
        self.owned = owned  # another target too, by its name, as soon as no fault has it
        self.recoveries = recoveries
        self.random = pick
        self._stopping = stopping
        self.worker: Worker | None = None
        self.process: Supervised | None = None

    def wait(self, least_s: float, most_s: float | None = None) -> None:
        """Some time between the two; shorter when the run is being stopped."""
        self._stopping.wait(self.random.uniform(least_s, most_s or least_s))

    @property
    def stopping(self) -> bool:
        """Whether the run is being stopped."""
        return self._stopping.is_set()

    @property
    def victim(self) -> Supervised:
        if self.process is None:
            raise RuntimeError("this fault has no process")
        return self.process

    def kill(self) -> None:
        """SIGKILL of the victim."""
        self.victim.signal(signal.SIGKILL)

    def at_work(self) -> list[Held]:
        """What the victim holds, once it holds something; nothing when it stays idle for 5 s."""
        deadline = time.monotonic() + 5
        while not (held := self.recoveries.held_by(self.victim.pid)) and time.monotonic() < deadline:
            self.wait(0.05)
        return held

    def has_lease(self) -> bool:
        """Whether the victim serves; within 5 s, or else not."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with suppress(exc.DBAPIError):
                if self.victim.pid in self.stack.worker_ids():
                    return True
            self.wait(0.2)
        return False

    def in_between(self, service: str, mode: str, argument: float | None, least_s: float, most_s: float) -> None:
        """Have the proxy before a service do something to what passes, for some time between the two."""
        self.stack.order_proxy(service, mode, argument)
        try:
            self.wait(least_s, most_s)
        finally:
            self.stack.order_proxy(service, "pass")

    @contextmanager
    def held(self, process: Supervised) -> Iterator[None]:
        """Not restarted meanwhile."""
        self.stack.processes.hold(process)
        try:
            yield
        finally:
            self.stack.processes.release(process)

    @contextmanager
    def stopped(self, process: Supervised) -> Iterator[None]:
        """SIGSTOP … SIGCONT, of this one process: what has been started in its place meanwhile is another."""
        pid = process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def wait_gone(process: Supervised, pid: int) -> None:
    """A process that was told to stop has a minute: a worker that is starting obeys once it has started."""
    deadline = time.monotonic() + 60
    while process.pid == pid and process.runs and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.pid == pid and process.runs:
        raise NotUndone(f"{process.name} (pid {pid}) was told to stop and still runs after 60 s")


@dataclass(frozen=True)
class Fault:
    """One kind. ``weight``: how often it is in the deck."""

    kind: str
    target: Target
    act: Callable[[Chaos], None]
    weight: int = 1
    about: str = ""


def fault(target: Target, weight: int = 1) -> Callable[[Callable[[Chaos], None]], Fault]:
    """Make a fault of a function: its kind is the function's name, and ``about`` the first line of its docstring."""

    def made(act: Callable[[Chaos], None]) -> Fault:
        return Fault(act.__name__, target, act, weight, (act.__doc__ or "").splitlines()[0])

    return made
