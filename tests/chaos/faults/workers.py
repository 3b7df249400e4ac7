"""The faults of workers: they die, stop, drain, meet a second one in their slot, and have wrong files and clocks."""

import os
import signal
import subprocess
import time
from contextlib import suppress

from sqlalchemy import exc

from tests.chaos.faults.fault import Chaos, Nothing, NotUndone, fault, wait_gone
from tests.chaos.stack import LEASE_S

_REFUSED_S = 120.0  # for a second worker in a slot to see that the first one lives, while all the rest goes on


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
    wait_gone(chaos.victim, pid)


@fault("worker")
def drain_worker_in_a_hurry(chaos: Chaos) -> None:
    """SIGTERM of a worker, and again."""
    pid = chaos.victim.signal(signal.SIGTERM)
    chaos.wait(0.1, 0.5)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    wait_gone(chaos.victim, pid)


@fault("worker", weight=2)
def other_file(chaos: Chaos) -> None:
    """A worker starts with another pipeline file: it takes none of the jobs, until it has the right one again."""
    if chaos.worker is None:
        raise RuntimeError("this fault has no worker")
    with chaos.stack.other_file(chaos.worker):
        wait_gone(chaos.victim, chaos.victim.signal(signal.SIGTERM))
        deadline = time.monotonic() + 30
        while not _serves(chaos) and time.monotonic() < deadline and not chaos.stopping:
            chaos.wait(0.2)
        serves = _serves(chaos)
        chaos.wait(4, 12)
        serves = serves and not chaos.stopping  # for long enough to be seen
    wait_gone(chaos.victim, chaos.victim.signal(signal.SIGTERM))
    if not serves:
        raise Nothing("the worker did not come to serve with the other file")


def _serves(chaos: Chaos) -> bool:
    """Whether the victim has its lease; not while the database does not answer."""
    with suppress(exc.DBAPIError):
        return chaos.victim.pid in chaos.stack.worker_ids()
    return False


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
