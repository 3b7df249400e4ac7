"""The driver: deals faults from a seeded deck, strikes, and keeps what it has struck."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.chaos.faults.fault import Chaos, Fault, Nothing, NotUndone, Target
from tests.chaos.faults.kinds import KINDS
from tests.chaos.processes import Supervised
from tests.chaos.recovery import Recoveries
from tests.chaos.stack import LEASE_S, ChaosStack, Worker

AT_ONCE = 3


@dataclass(frozen=True)
class Struck:
    """One fault that was carried out; times by time.time()."""

    kind: str
    target: str
    began: float
    ended: float
    nothing: str | None = None  # why it came to nothing: it proves nothing then


class Faults(threading.Thread):
    """Strikes about every ``every_s`` seconds until ``stop``, which waits until everything is undone."""

    def __init__(
        self, stack: ChaosStack, recoveries: Recoveries, seed: int, every_s: float, only: Sequence[str] | None = None
    ) -> None:
        super().__init__(name="faults", daemon=True)
        self.struck: list[Struck] = []
        self.running: dict[str, str] = {}  # target → kind
        self.violations: list[str] = []
        self._stack = stack
        self._recoveries = recoveries
        self._seed = seed
        self._every_s = every_s
        self._only = only
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.kind for each in list(self.struck) if each.nothing is None)

    def came_about(self, times: int) -> bool:
        """Whether each kind that may strike has, so often, and came to more than nothing."""
        counts = self.counts
        return all(counts[fault.kind] >= times for fault in self._kinds())

    @property
    def nothings(self) -> dict[str, dict[str, int]]:
        """How often faults of each kind came to nothing, by the reason."""
        found: dict[str, dict[str, int]] = {}
        for each in list(self.struck):
            if each.nothing is not None:
                reasons = found.setdefault(each.kind, {})
                reasons[each.nothing] = reasons.get(each.nothing, 0) + 1
        return found

    def stop(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join()
        for thread in self._threads:
            thread.join()

    def run(self) -> None:
        deal = self._deal()
        pick = random.Random(f"{self._seed}/faults")
        number = 0
        while not self._stopping.wait(self._every_s * pick.uniform(0.6, 1.4)):
            if len(self.running) >= AT_ONCE:
                continue
            for _ in range(8):  # the next one whose target is free
                fault = next(deal)
                if self._strike(fault, random.Random(f"{self._seed}/{number}")):
                    number += 1
                    break

    def _deal(self) -> Iterator[Fault]:
        """A deck of every kind this stack has targets for, shuffled anew whenever it has run out."""
        pick = random.Random(f"{self._seed}/deck")
        deck = [fault for fault in self._kinds() for _ in range(fault.weight)]
        if not deck:
            raise ValueError("this stack has no target for any of the faults asked for")
        while True:
            yield from pick.sample(deck, len(deck))

    def _kinds(self) -> list[Fault]:
        """Those asked for that this stack has targets for."""
        kinds = (fault for fault in KINDS.values() if not self._only or fault.kind in self._only)
        return [fault for fault in kinds if self._targets(fault.target)]

    def _targets(self, target: Target) -> dict[str, Worker | Supervised | None]:
        stack = self._stack
        found: dict[str, Worker | Supervised | None] = {}
        if target == "worker":
            found = {worker.process.name: worker for worker in stack.workers}
        elif target == "echo worker":
            found = {worker.process.name: worker for worker in stack.workers if worker is not stack.asking}
        elif target == "server":
            found = {"server": stack.server}
        elif target == "clocked worker":
            found = {worker.process.name: worker for worker in stack.workers if worker.clock is not None}
        elif target == "api":
            found = {process.name: process for process in stack.apis}
        elif target == "rescuer":
            found = {process.name: process for process in stack.rescuers}
        elif target == "valkey":
            found = {"valkey": stack.valkey}
        elif target == "postgres" and stack.kind == "postgresql":
            found = {"postgres": stack.postgres}
        elif target == "s3" and stack.s3 is not None:
            found = {"s3": stack.weed}
        elif target == "sqlite" and stack.kind == "sqlite":
            found = {"sqlite": None}
        elif target == "disk" and stack.tmpfs:
            found = {"disk": None}
        elif target == "cable" and stack.far_host:
            found = {"cable": None}
        elif target in ("tenants", "versions", "schema"):
            found = {target: None}
        return found

    def _strike(self, fault: Fault, pick: random.Random) -> bool:
        """Whether there was a target; the fault then runs in a thread of its own."""
        with self._lock:
            free = {
                name: target
                for name, target in self._targets(fault.target).items()
                if name not in self.running
                and not (isinstance(target, Worker) and not target.process.runs)
                and not (isinstance(target, Supervised) and not target.runs)
            }
            if not free:
                return False
            name = pick.choice(sorted(free))
            self.running[name] = fault.kind
        chaos = Chaos(self._stack, self._recoveries, pick, self._stopping, self._struck_since, self._owned)
        target = free[name]
        chaos.worker = target if isinstance(target, Worker) else None
        chaos.process = target.process if isinstance(target, Worker) else target
        thread = threading.Thread(target=self._carry_out, args=(fault, name, chaos), name=fault.kind, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

    @contextmanager
    def _owned(self, target: str) -> Iterator[None]:
        """A target that a fault needs beside its own; waits until no other fault has it."""
        while not self._take(target):
            time.sleep(0.05)
        try:
            yield
        finally:
            with self._lock:
                del self.running[target]

    def _take(self, target: str) -> bool:
        with self._lock:
            is_free = target not in self.running
            if is_free:
                self.running[target] = threading.current_thread().name  # the kind of the fault
            return is_free

    def _struck_since(self, since: float) -> set[str]:
        with self._lock:
            return set(self.running) | {each.target for each in self.struck if each.ended >= since - LEASE_S}

    def _carry_out(self, fault: Fault, target: str, chaos: Chaos) -> None:
        began, nothing = time.time(), None
        try:
            fault.act(chaos)
        except Nothing as reason:
            nothing = str(reason)
        except NotUndone as trouble:
            self.violations.append(str(trouble))
        except Exception as error:  # noqa: BLE001 — a driver's own trouble must not pass for a quiet run
            self.violations.append(f"the driver: {fault.kind} of {target}: {type(error).__name__}: {error}")
        finally:
            self.struck.append(Struck(fault.kind, target, began, time.time(), nothing))
            with self._lock:
                del self.running[target]
