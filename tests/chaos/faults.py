"""The faults: one function a kind, dealt from a seeded deck.

A fault owns its target while it lasts: no other strikes the same worker, server or service until
it has been undone. Faults of different targets overlap.
"""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import redis
from sqlalchemy import exc

from omni_jobs.errors import NotFound
from tests.chaos.processes import Supervised
from tests.chaos.recovery import Held, Recoveries
from tests.chaos.stack import ASKING, LEASE_S, WEIGHTS, ChaosStack, Worker

__all__ = ["KINDS", "Chaos", "Fault", "Faults", "NotUndone", "Nothing", "Struck", "fault"]

AT_ONCE = 3
_UNAVAILABLE = 3  # a command's exit code while a service does not answer
_REFUSED_S = 120.0  # for a second worker in a slot to see that the first one lives, while all the rest goes on
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
    "schema",
]


@dataclass(frozen=True)
class Struck:
    """One fault that was carried out; times by time.time()."""

    kind: str
    target: str
    began: float
    ended: float
    nothing: str | None = None  # why it came to nothing: it proves nothing then


class Nothing(Exception):
    """Why a fault came to nothing."""


class Chaos:
    """What a fault works with: the stack, a target, random numbers of its own, time."""

    def __init__(
        self,
        stack: ChaosStack,
        recoveries: Recoveries,
        pick: random.Random,
        stopping: threading.Event,
        others_since: Callable[[float], set[str]],
    ) -> None:
        self.stack = stack
        self.others_since = others_since  # what was struck since then (time.time()), or still is
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


@dataclass(frozen=True)
class Fault:
    """One kind. ``weight``: how often it is in the deck."""

    kind: str
    target: Target
    act: Callable[[Chaos], None]
    weight: int = 1
    about: str = ""


KINDS: dict[str, Fault] = {}


def fault(target: Target, weight: int = 1) -> Callable[[Callable[[Chaos], None]], Callable[[Chaos], None]]:
    """Add a kind, of the function's name and the first line of its docstring."""

    def known(act: Callable[[Chaos], None]) -> Callable[[Chaos], None]:
        KINDS[act.__name__] = Fault(act.__name__, target, act, weight, (act.__doc__ or "").splitlines()[0])
        return act

    return known


# -- workers ---------------------------------------------------------------------------------


@fault("worker", weight=4)
def kill_worker(chaos: Chaos) -> None:
    """kill -9 of a worker; it starts again in its slot at once."""
    held = chaos.at_work()
    at = time.time()
    chaos.victim.signal(signal.SIGKILL)
    chaos.recoveries.follow("kill_worker", held, at, successor=chaos.victim)
    chaos.wait(1)


@fault("worker", weight=3)
def kill_worker_for_good(chaos: Chaos) -> None:
    """kill -9 of a worker; nothing starts in its slot before its lease has run out."""
    with chaos.held(chaos.victim):
        held = chaos.at_work()
        at = time.time()
        chaos.victim.signal(signal.SIGKILL)
        chaos.recoveries.follow("kill_worker_for_good", held, at)
        chaos.wait(LEASE_S + 2, LEASE_S + 5)


@fault("worker", weight=2)
def stop_worker_past_its_lease(chaos: Chaos) -> None:
    """SIGSTOP of a worker until its lease is gone, then SIGCONT: a zombie that wants to write."""
    held = chaos.at_work()
    at = time.time()
    with chaos.stopped(chaos.victim):
        chaos.recoveries.follow("stop_worker_past_its_lease", held, at)
        chaos.wait(LEASE_S + 1, LEASE_S + 4)


@fault("worker")
def stop_worker_briefly(chaos: Chaos) -> None:
    """SIGSTOP of a worker for less than its lease, then SIGCONT."""
    with chaos.stopped(chaos.victim):
        chaos.wait(0.5, LEASE_S * 0.7)


@fault("worker", weight=2)
def drain_worker(chaos: Chaos) -> None:
    """SIGTERM of a worker: it finishes or hands back."""
    pid = chaos.victim.signal(signal.SIGTERM)
    _wait_gone(chaos, pid)


@fault("worker")
def drain_worker_in_a_hurry(chaos: Chaos) -> None:
    """SIGTERM of a worker, and again."""
    pid = chaos.victim.signal(signal.SIGTERM)
    chaos.wait(0.1, 0.5)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    _wait_gone(chaos, pid)


@fault("worker", weight=2)
def other_file(chaos: Chaos) -> None:
    """A worker starts with another pipeline file: it takes none of the jobs, until it has the right one again."""
    if chaos.worker is None:
        raise RuntimeError("this fault has no worker")
    with chaos.stack.other_file(chaos.worker):
        _wait_gone(chaos, chaos.victim.signal(signal.SIGTERM))
        deadline = time.monotonic() + 30
        while not _serves(chaos) and time.monotonic() < deadline and not chaos.stopping:
            chaos.wait(0.2)
        serves = _serves(chaos)
        chaos.wait(4, 12)
        serves = serves and not chaos.stopping  # for long enough to be seen
    _wait_gone(chaos, chaos.victim.signal(signal.SIGTERM))
    if not serves:
        raise Nothing("the worker did not come to serve with the other file")


def _serves(chaos: Chaos) -> bool:
    """Whether the victim has its lease; not while the database does not answer."""
    with suppress(exc.DBAPIError):
        return chaos.victim.pid in chaos.stack.worker_ids()
    return False


def _wait_gone(chaos: Chaos, pid: int) -> None:
    """A worker that was told to stop has a minute: one that is starting obeys once it has started."""
    deadline = time.monotonic() + 60
    while chaos.victim.pid == pid and chaos.victim.runs and time.monotonic() < deadline:
        time.sleep(0.05)
    if chaos.victim.pid == pid and chaos.victim.runs:
        raise NotUndone(f"{chaos.victim.name} (pid {pid}) was told to stop and still runs after 60 s")


@fault("worker", weight=2)
def scale(chaos: Chaos) -> None:
    """A second worker is started in an occupied slot: it is refused and ends by itself, and nobody else does."""
    if chaos.worker is None:
        raise RuntimeError("this fault has no worker")
    if not chaos.has_lease():
        raise Nothing("the holder is starting: its slot may go to either")
    holder, began = chaos.victim.pid, time.time()
    second = chaos.stack.start_second(chaos.worker)
    status = None
    try:
        with suppress(subprocess.TimeoutExpired):
            status = second.wait(_REFUSED_S)
    finally:
        second.kill()
        second.wait()
        chaos.stack.processes.forget(second.pid)
    if chaos.others_since(began) & {"postgres", "sqlite", "cable"}:
        raise Nothing("who is cut off from the database for a lease loses its slot, to a second worker too")
    said = chaos.stack.second_log(chaos.worker).read_text(errors="replace")
    if "its lease is over" in said or (chaos.stack.kind == "sqlite" and chaos.victim.pid != holder):
        # On SQLite a process that was stopped inside a write keeps all others from renewing; the holder may end.
        raise Nothing("the holder had lost its lease")
    if status != 1 or "is taken: worker" not in said:
        raise NotUndone(f"a second worker in the slot of {chaos.victim.name} ended with {status}: {said[-2000:]}")
    if chaos.victim.pid != holder or not chaos.victim.runs:
        raise NotUndone(f"{chaos.victim.name} (pid {holder}) did not outlive a second worker in its slot")


@fault("clocked worker")
def set_clock_ahead(chaos: Chaos) -> None:
    """The wall clock of a worker's host jumps ahead by minutes, and back again."""
    _set_clock(chaos, chaos.random.randrange(60, 7200))


@fault("clocked worker")
def set_clock_back(chaos: Chaos) -> None:
    """The wall clock of a worker's host jumps back by minutes, and ahead again."""
    _set_clock(chaos, -chaos.random.randrange(60, 7200))


def _set_clock(chaos: Chaos, by_s: int) -> None:
    if chaos.worker is None or chaos.worker.clock is None:
        raise RuntimeError("this worker has no clock of its own")
    chaos.worker.clock.write_text(f"{by_s:+d}")
    try:
        chaos.wait(3, 8)
    finally:
        chaos.worker.clock.write_text("+0")


# -- whose turn it is --------------------------------------------------------------------------


@fault("tenants", weight=2)
def change_weights(chaos: Chaos) -> None:
    """Tenants get other weights, one of them nearly all the shares or nearly none, and one another limit."""
    weights = {name: chaos.random.choice((0.001, 0.5, 1.0, 8.0, 1000.0)) for name in WEIGHTS}
    try:
        chaos.stack.set_tenants(weights, running_jobs=chaos.random.choice((3, 10, 50)))
    except exc.DBAPIError:
        raise Nothing("the database did not answer") from None
    chaos.wait(1, 5)


@fault("tenants", weight=2)
def pause_stage(chaos: Chaos) -> None:
    """A stage is paused for some seconds: what it runs goes on, and nothing of it is claimed."""
    with chaos.stack.paused(chaos.random.choice(("first", "second"))):
        chaos.wait(1, 6)


@fault("tenants", weight=2)
def drain_version(chaos: Chaos) -> None:
    """The version of a pipeline takes no new jobs for some seconds: those that it has go on, and clients come again."""
    try:
        with chaos.stack.draining(chaos.random.choice(("echo", "echo", ASKING))):
            chaos.wait(2, 6)
    except NotFound:
        raise Nothing("no server has told of its versions yet") from None


# -- API servers and rescuers ------------------------------------------------------------------


@fault("api", weight=2)
def kill_api(chaos: Chaos) -> None:
    """kill -9 of an API server."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1, 3)


@fault("api")
def stop_api(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of an API server."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 7)


@fault("api")
def terminate_api(chaos: Chaos) -> None:
    """SIGTERM of an API server."""
    chaos.victim.signal(signal.SIGTERM)
    chaos.wait(1, 3)


@fault("rescuer")
def kill_rescuer(chaos: Chaos) -> None:
    """kill -9 of a rescuer."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1)


@fault("rescuer")
def stop_rescuer(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of a rescuer."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 7)


# -- Valkey ------------------------------------------------------------------------------------


@fault("valkey")
def kill_valkey(chaos: Chaos) -> None:
    """kill -9 of Valkey; its append-only file is there."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(1)


@fault("valkey")
def wipe_valkey(chaos: Chaos) -> None:
    """kill -9 of Valkey, as if it had no append-only file: it comes back empty."""
    with chaos.held(chaos.victim):
        chaos.victim.signal(signal.SIGKILL)
        chaos.victim.wait_gone(5)
        for path in chaos.stack.valkey_directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        chaos.wait(0.1, 2)


@fault("valkey")
def flush_valkey(chaos: Chaos) -> None:
    """FLUSHALL: every doorbell that waits is gone."""
    with suppress(redis.RedisError), chaos.stack.broker() as broker:
        broker.flushall()


@fault("valkey")
def hang_valkey(chaos: Chaos) -> None:
    """SIGSTOP, then SIGCONT, of Valkey: connections stay and nothing answers."""
    with chaos.stopped(chaos.victim):
        chaos.wait(2, 8)


@fault("valkey")
def fill_valkey(chaos: Chaos) -> None:
    """Valkey is full: under ``noeviction`` it refuses every write."""
    with suppress(redis.RedisError), chaos.stack.broker() as broker:
        broker.config_set("maxmemory", "1")
        try:
            chaos.wait(2, 6)
        finally:
            broker.config_set("maxmemory", "0")


# -- databases ---------------------------------------------------------------------------------


@fault("postgres", weight=2)
def restart_postgres(chaos: Chaos) -> None:
    """PostgreSQL stops at once (``-m immediate``) and starts with crash recovery."""
    chaos.victim.signal(signal.SIGQUIT)
    chaos.wait(2, 3)


@fault("postgres", weight=2)
def cut_before_commit(chaos: Chaos) -> None:
    """Connections are dropped before their COMMIT arrives."""
    _proxy(chaos, "postgres", "cut_before_commit", chaos.random.randrange(1, 6), 1, 3)


@fault("postgres", weight=2)
def cut_after_commit(chaos: Chaos) -> None:
    """Connections are dropped after their COMMIT was done and before its reply."""
    _proxy(chaos, "postgres", "cut_after_commit", chaos.random.randrange(1, 6), 1, 3)


@fault("postgres")
def drop_connections(chaos: Chaos) -> None:
    """Every connection to PostgreSQL is dropped, and new ones are for a moment."""
    _proxy(chaos, "postgres", "refuse", None, 0.2, 2)


@fault("postgres")
def hang_postgres(chaos: Chaos) -> None:
    """Nothing passes between PostgreSQL and anybody; connections stay."""
    _proxy(chaos, "postgres", "stall", None, 1, 4)


@fault("sqlite")
def lock_sqlite(chaos: Chaos) -> None:
    """Another process holds SQLite's write lock."""
    import sqlite3

    connection = sqlite3.connect(chaos.stack.directory / "omni-jobs.sqlite", isolation_level=None, timeout=20)
    try:
        with suppress(sqlite3.OperationalError):
            connection.execute("BEGIN IMMEDIATE")
            chaos.wait(1, 4)
            connection.execute("ROLLBACK")
    finally:
        connection.close()


# -- object store ------------------------------------------------------------------------------


@fault("s3")
def kill_s3(chaos: Chaos) -> None:
    """kill -9 of the S3 server."""
    chaos.victim.signal(signal.SIGKILL)
    chaos.wait(2, 3)


@fault("s3")
def slow_s3(chaos: Chaos) -> None:
    """S3 answers late."""
    _proxy(chaos, "s3", "delay", chaos.random.uniform(0.2, 1.0), 3, 6)


@fault("s3")
def s3_errors(chaos: Chaos) -> None:
    """S3 answers many requests with 500."""
    _proxy(chaos, "s3", "errors", chaos.random.uniform(0.3, 1.0), 2, 5)


@fault("s3")
def s3_wrong_bytes(chaos: Chaos) -> None:
    """Payloads read from S3 have a wrong byte, now and then."""
    _proxy(chaos, "s3", "corrupt", chaos.random.uniform(0.2, 0.7), 3, 6)


@fault("disk", weight=3)
def fill_disk(chaos: Chaos) -> None:
    """The disk with the objects is full."""
    filler = chaos.stack.objects / ".filler"
    fd = os.open(filler, os.O_CREAT | os.O_WRONLY)
    try:
        with suppress(OSError):
            while True:
                free = shutil.disk_usage(chaos.stack.objects).free
                os.posix_fallocate(fd, os.fstat(fd).st_size, max(4096, free))
        chaos.wait(2, 5)
    finally:
        os.close(fd)
        filler.unlink()


@fault("schema")
def migrate(chaos: Chaos) -> None:
    """A later build migrates the database, or takes it back, under all processes; it may be killed and run again."""
    migration = chaos.stack.migration()
    if chaos.random.random() < 0.5:
        first = migration.start()
        chaos.wait(0.5, 3)
        first.kill()
        first.wait()
    deadline = time.monotonic() + 120
    while (status := migration.run()) == _UNAVAILABLE and time.monotonic() < deadline:
        chaos.wait(0.5)
    if status == _UNAVAILABLE:
        raise Nothing("the database did not answer for long enough")
    if status != 0:
        raise NotUndone(f"a migration ended with {status}: {migration.said}")
    chaos.stack.is_later = not chaos.stack.is_later
    chaos.wait(2, 8)


def _proxy(chaos: Chaos, name: str, mode: str, argument: float | None, least_s: float, most_s: float) -> None:
    chaos.stack.order_proxy(name, mode, argument)
    try:
        chaos.wait(least_s, most_s)
    finally:
        chaos.stack.order_proxy(name, "pass")


# -- the network -------------------------------------------------------------------------------


@fault("cable", weight=3)
def pull_cable(chaos: Chaos) -> None:
    """A host with two workers is cut off from everything for longer than a lease."""
    workers = [worker.process for worker in chaos.stack.workers if worker.far]
    held = [run for process in workers if process.runs for run in chaos.recoveries.held_by(process.pid)]
    at = time.time()
    chaos.stack.cable(plugged=False)
    try:
        chaos.recoveries.follow("pull_cable", held, at)
        chaos.wait(LEASE_S + 1, LEASE_S + 5)
    finally:
        chaos.stack.cable(plugged=True)


class NotUndone(Exception):
    """What a fault expects of the system did not come about."""


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
        elif target in ("tenants", "schema"):
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
        chaos = Chaos(self._stack, self._recoveries, pick, self._stopping, self._struck_since)
        target = free[name]
        chaos.worker = target if isinstance(target, Worker) else None
        chaos.process = target.process if isinstance(target, Worker) else target
        thread = threading.Thread(target=self._carry_out, args=(fault, name, chaos), name=fault.kind, daemon=True)
        self._threads.append(thread)
        thread.start()
        return True

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
