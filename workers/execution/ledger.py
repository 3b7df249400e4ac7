"""The ledger: the worker's one database thread, and its group commits.

Whatever the executor wants of :class:`omni_jobs.jobs.Jobs` waits here until the thread
is free, and then goes into one transaction with everything else: under load hundreds of
completions and claims share one, an idle worker's single claim goes at once. The thread
also renews the worker's lease, so a busy event loop cannot lose it, and while the worker
holds stage runs it asks which of them are to stop. From its start the lease holds the
worker's slot: nobody else may live there.

While the database does not answer everything waits, and is tried again: a transaction
whose COMMIT got no reply may have happened, so none is ever given up on but by fencing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from omni_jobs.errors import DatabaseUnavailable, Fenced, OmniJobsError, SlotTaken, StageError
from omni_jobs.jobs import Claim, Completion, Failure, Hint, NewWorker, Outcome, ProgressReport, SlotHolder
from workers.execution import incarnation

if TYPE_CHECKING:
    from omni_jobs.broker.relay import Relay
    from omni_jobs.jobs import Jobs
    from omni_jobs.settings import Settings

__all__ = ["Ledger"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_GATHER_S = 0.02  # a loop that never comes to rest must not keep a turn waiting
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# A holder of the slot that may live is watched for so many heartbeats, and a moment for a database that is slow.
_WATCH_BEATS = 3
_WATCH_MORE_S = 2.0
_DATABASE_WAS_AWAY_S = 0.5


class _Kind(Enum):
    """In the order in which a turn commits them: what frees others first."""

    COMPLETE = auto()
    FAIL = auto()
    RELEASE = auto()
    CLAIM = auto()


@dataclass(eq=False, slots=True)
class _Entry:
    kind: _Kind
    item: Any
    future: asyncio.Future[Any]
    result: Any = None
    error: OmniJobsError | None = None


@dataclass(eq=False, slots=True)
class _Turn:
    """What one turn of the thread writes."""

    entries: list[_Entry] = field(default_factory=list)
    progress: list[ProgressReport] = field(default_factory=list)


class Ledger:
    """All coroutines run on one event loop; ``take_slot``, ``serve`` and ``close`` block: call them in a thread."""

    def __init__(
        self,
        jobs: Jobs,
        worker: NewWorker,
        relay: Relay,
        settings: Settings,
        *,
        on_cancel: Callable[[list[int]], None],
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        """``on_cancel`` and ``on_fenced`` are called on the event loop."""
        self.worker = worker
        self._jobs = jobs
        self._relay = relay
        self._settings = settings
        self._on_cancel = on_cancel
        self._on_fenced = on_fenced
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serves = False  # under _registering
        self._registering = threading.Lock()
        self._changed = threading.Condition()
        self._waiting = False  # the thread waits to be notified of something to do
        self._closed = threading.Event()
        self._entries: deque[_Entry] = deque()
        self._progress: dict[int, ProgressReport] = {}
        self._progress_at = 0.0
        self._beat_at = 0.0
        self._look_at = 0.0  # for cancels, while anything is held
        self._held: set[int] = set()  # stage runs claimed and not reported yet; the thread's own
        self._in_company = False  # the last turn wrote more than one entry: the next waits for more
        self._quiet = threading.Event()  # the loop has nothing more for the turn that gathers
        self._closing = False
        self._close_by = 0.0
        self._fenced: Fenced | None = None
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    # The worker's life.

    def take_slot(self, loop: asyncio.AbstractEventLoop, keep_trying: Callable[[], bool]) -> None:
        """Make the slot this worker's, and free at once what a predecessor there held.

        A worker calls it before it loads its engine; nobody counts on it until ``serve``. Blocks while the
        database is away, and while it cannot be told whether the slot's holder lives.
        Raises SlotTaken when it does, and DatabaseUnavailable once ``keep_trying`` says no.
        """
        self._loop = loop
        while True:
            holder = self._persist(lambda: self._jobs.slot_holder(self.worker.slot), keep_trying)
            if holder is not None:
                self._refuse_if_alive(holder, keep_trying)
            try:
                self._relay.send(self._persist(partial(self._register, instead_of=holder), keep_trying))
                break
            except SlotTaken as error:  # it renewed a moment ago, or another came first: look again
                logger.warning("%s meanwhile", error)
        if holder is not None:
            self._kill_if_stopped(holder)
        self._beat_at = time.monotonic() + self._settings.heartbeat_s
        self._thread.start()

    def serve(self, keep_trying: Callable[[], bool]) -> None:
        """From here on claims are answered. Blocks and raises like ``take_slot``."""
        self._relay.send(self._persist(self._register_serving, keep_trying))

    def _refuse_if_alive(self, holder: SlotHolder, keep_trying: Callable[[], bool]) -> None:
        """Raise SlotTaken when the holder lives; return when it is dead.

        A process that can be seen from here proves it either way: alive, it may still be unable to renew, because
        the database is busy. A stopped process counts as dead, because it may never go on.
        """
        if not holder.has_lease:
            logger.warning("worker %s had this slot, and its lease is over", holder.worker_id)
            return
        if not self._runs_no_more(holder):
            self._refuse_if_renewed(holder, keep_trying)
        logger.warning("worker %s (pid %d on %s) had this slot and is dead", holder.worker_id, holder.pid, holder.host)

    def _runs_no_more(self, holder: SlotHolder) -> bool:
        """Whether the holder's process is known to be gone. Raises SlotTaken when it is known to run."""
        here = incarnation.pid_space()
        if here is None or holder.pid_space != here or holder.pid_started is None:
            return False
        try:
            if incarnation.started(holder.pid) != holder.pid_started:
                return True
            if not incarnation.is_stopped(holder.pid):
                raise self._taken(holder)
        except OSError as error:
            logger.warning("whether process %d runs cannot be told: %s", holder.pid, error)
        return False

    def _kill_if_stopped(self, holder: SlotHolder) -> None:
        """Kill the process that lost its slot if it is stopped, so that its engine frees the device's memory."""
        if holder.pid_started is None or holder.pid_space != incarnation.pid_space():
            return
        try:
            if incarnation.started(holder.pid) == holder.pid_started and incarnation.is_stopped(holder.pid):
                logger.warning("process %d, which had this slot, is stopped: killed", holder.pid)
                os.kill(holder.pid, signal.SIGKILL)
        except OSError as error:
            logger.warning("process %d, which had this slot, cannot be killed: %s", holder.pid, error)

    def _refuse_if_renewed(self, holder: SlotHolder, keep_trying: Callable[[], bool]) -> None:
        """Watch the holder for some of its heartbeats. Raise SlotTaken when it renews its lease."""
        pause = self._settings.heartbeat_s / 2
        watch_s = _WATCH_BEATS * (holder.heartbeat_s or self._settings.heartbeat_s) + _WATCH_MORE_S
        left = watch_s
        while left > 0:
            if self._closed.wait(pause):
                raise SlotTaken(f"slot {self.worker.slot} may be taken: asked to stop before that was known")
            left -= pause
            asked_at = time.monotonic()
            seen = self._persist(lambda: self._jobs.slot_holder(self.worker.slot), keep_trying)
            if time.monotonic() - asked_at > _DATABASE_WAS_AWAY_S:  # from the holder as well, which tries again later
                left = watch_s + _LONGEST_PAUSE_S
            if seen is None or not seen.has_lease:
                return
            if seen.worker_id != holder.worker_id or seen.renewed_at != holder.renewed_at:
                raise self._taken(seen)

    def _taken(self, holder: SlotHolder) -> SlotTaken:
        return SlotTaken(
            f"slot {self.worker.slot} is taken: worker {holder.worker_id} lives there, "
            f"pid {holder.pid} on host {holder.host}. Give this worker a slot of its own: another name "
            "(omni-jobs worker --slot, celery -n), or another hostname where the name ends with @%h"
        )

    def _register(self, instead_of: SlotHolder | None = None) -> Sequence[Hint]:
        return self._jobs.register_worker(self.worker, self._settings.lease_s, instead_of=instead_of, loading=True)

    def _register_serving(self) -> Sequence[Hint]:
        with self._registering:  # the thread must not say afterwards that the engine is being loaded
            if self._fenced is not None:
                raise self._fenced
            if self._closed.is_set():
                raise Fenced("this worker was asked to stop")
            hints = self._jobs.register_worker(self.worker, self._settings.lease_s)
            self._serves = True
        return hints

    def _persist(self, call: Callable[[], T], keep_trying: Callable[[], bool]) -> T:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except DatabaseUnavailable as error:
                logger.error("the database has no place for this worker yet: %s", error)
                if not keep_trying():
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, retire the worker, stop. What is not written in time the lease's end settles."""
        with self._changed:
            self._close_by = time.monotonic() + timeout_s
            self._closing = True
            self._closed.set()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s + 1.0)

    # What the executor asks. All raise Fenced, and StageError for what the database refuses for good.

    async def claim(self, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        """What could be claimed of the hints; may give again what an earlier call gave."""
        return cast("list[Claim]", await self._ask(_Kind.CLAIM, list(hints)))

    async def complete(self, completion: Completion) -> Outcome:
        """Record an attempt's end; what it stored is recorded only if the outcome is ``won``."""
        return cast("Outcome", await self._ask(_Kind.COMPLETE, completion))

    async def fail(self, failure: Failure) -> Outcome:
        """Record an attempt's error."""
        return cast("Outcome", await self._ask(_Kind.FAIL, failure))

    async def release(self, stage_run_id: int, attempt: int) -> None:
        """Hand an unfinished stage run back: cancelled if its job is to stop, else queued again."""
        await self._ask(_Kind.RELEASE, (stage_run_id, attempt))

    def report_progress(self, report: ProgressReport) -> None:
        """Keep the newest per stage run; written every ``progress_every_s``, or never if it ends before."""
        with self._changed:
            first = not self._progress
            self._progress[report.stage_run_id] = report
            if first and self._waiting:
                self._changed.notify()

    def forget_progress(self, stage_run_id: int) -> None:
        if stage_run_id in self._progress:
            with self._changed:
                self._progress.pop(stage_run_id, None)

    async def _ask(self, kind: _Kind, item: Any) -> Any:
        if self._fenced is not None:
            raise self._fenced
        entry = _Entry(kind, item, asyncio.get_running_loop().create_future())
        # Without the lock: the thread says that it waits before it looks, under the lock, a last time.
        self._entries.append(entry)
        if self._fenced is not None:  # meanwhile: nobody may look at the entry any more
            entry.future.cancel()
            raise self._fenced
        if self._waiting:
            with self._changed:
                self._waiting = False
                self._changed.notify()
        return await entry.future

    # The thread.

    def _run(self) -> None:
        turn = _Turn()
        pause = 0.0
        try:
            while not (self._closing and (not self._entries or time.monotonic() > self._close_by)):
                turn = _Turn()
                self._fill(turn, pause)
                pause = self._commit_or_put_back(turn, pause)
        except (Fenced, SlotTaken) as error:
            logger.critical("%s; another worker may hold its stage runs now", error)
            self._stop_fenced(error, turn)
        except Exception as error:
            # A bug. Without this thread the worker would hold what it has, and do nothing, for ever.
            logger.exception("the ledger's thread ends")
            self._stop_fenced(Fenced(f"the worker's ledger broke: {type(error).__name__}: {error}"), turn)
        else:
            self._retire()

    def _commit_or_put_back(self, turn: _Turn, pause: float) -> float:
        """Write the turn and renew; how long to pause then, because the database does not answer."""
        try:
            self._renew_if_due()
            self._write(turn)
            self._look_for_cancels_if_due()
        except DatabaseUnavailable as error:
            logger.error("%d reports and claims wait: %s", len(turn.entries), error)
            self._put_back(turn)
            return min(max(2 * pause, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        return 0.0

    def _fill(self, turn: _Turn, pause: float) -> None:
        """Wait for something to do, or for the next heartbeat; take it all."""
        if pause:
            self._closed.wait(pause)
        else:
            self._wait_for_work()
            if self._in_company and self._entries:
                self._gather()
        while self._entries:  # others append meanwhile
            turn.entries.append(self._entries.popleft())
        with self._changed:
            if self._progress and time.monotonic() >= self._progress_at:
                turn.progress = list(self._progress.values())
                self._progress.clear()
                self._progress_at = time.monotonic() + self._settings.progress_every_s
        self._in_company = len(turn.entries) > 1

    def _gather(self) -> None:
        """Wait until a whole round of the loop has brought nothing more: a turn costs nearly the same for many."""
        self._quiet.clear()
        self._on_loop(self._look_for_more, len(self._entries))
        self._quiet.wait(_LONGEST_GATHER_S)

    def _look_for_more(self, before: int) -> None:
        """On the loop, after everything that was ready there."""
        now = len(self._entries)
        if now > before:
            self._on_loop(self._look_for_more, now)
        else:
            self._quiet.set()

    def _wait_for_work(self) -> None:
        if self._entries:
            return
        with self._changed:
            self._waiting = True
            while not self._closing and not self._entries:
                wait = self._next_timer() - time.monotonic()
                if wait <= 0:
                    break
                self._changed.wait(wait)
                self._waiting = True
            self._waiting = False

    def _next_timer(self) -> float:
        timers = [self._beat_at]
        if self._progress:
            timers.append(self._progress_at)
        if self._held:
            timers.append(self._look_at)
        return min(timers)

    def _renew_if_due(self) -> None:
        if time.monotonic() < self._beat_at:
            return
        # The next beat counts from here: a database that was away is not beaten at once for every beat missed.
        self._beat_at = time.monotonic() + self._settings.heartbeat_s
        with self._registering:
            if not self._serves:  # nothing is held: a lease that ran out meanwhile may be taken again
                self._register()
                return
        self._stop(self._jobs.renew(self.worker.worker_id, self._settings.lease_s))

    def _look_for_cancels_if_due(self) -> None:
        if not self._held or time.monotonic() < self._look_at:
            return
        self._stop(self._jobs.unwanted(self.worker.worker_id))

    def _stop(self, unwanted: list[int]) -> None:
        self._look_at = time.monotonic() + self._settings.cancel_check_s
        if unwanted:
            self._on_loop(self._on_cancel, unwanted)

    def _write(self, turn: _Turn) -> None:
        by_kind: dict[_Kind, list[_Entry]] = {kind: [] for kind in _Kind}
        for entry in turn.entries:
            by_kind[entry.kind].append(entry)
        ended, wanted = by_kind[_Kind.COMPLETE], by_kind[_Kind.CLAIM]
        others = by_kind[_Kind.FAIL] or by_kind[_Kind.RELEASE]
        if ended and wanted and not others and self._commit_turn(ended, wanted):
            turn.entries = []
        for kind, entries in by_kind.items():
            if entries and turn.entries:
                self._relay.send(self._commit(kind, entries))
                turn.entries = [entry for entry in turn.entries if entry.kind is not kind]
                self._settle(kind, entries)
        if turn.progress:
            self._jobs.report_progress(turn.progress)
            turn.progress = []

    def _commit_turn(self, ended: list[_Entry], wanted: list[_Entry]) -> bool:
        """What ended and what comes in its place, in one transaction. False: the database refused something."""
        completions, hints = [entry.item for entry in ended], _hints_of(wanted)
        try:
            outcomes, claims = self._jobs.complete_and_claim(completions, self.worker.worker_id, list(hints))
        except DatabaseUnavailable:
            raise
        except Fenced:
            return False  # which stops the claims; what ended may still be recorded
        except Exception:
            logger.exception("a turn of %d failed in the database: in parts once more", len(ended) + len(wanted))
            return False
        self._relay.send(_note_outcomes(ended, outcomes))
        _note_claims(wanted, hints, claims)
        self._settle(_Kind.COMPLETE, ended)
        self._settle(_Kind.CLAIM, wanted)
        return True

    def _settle(self, kind: _Kind, entries: list[_Entry]) -> None:
        self._count_held(kind, entries)
        self._on_loop(_deliver, entries)

    def _commit(self, kind: _Kind, entries: list[_Entry]) -> list[Hint]:
        """One transaction for all. An error that one of them causes must not fail the others: then one by one."""
        try:
            return self._commit_together(kind, entries)
        except (DatabaseUnavailable, Fenced):
            raise
        except Exception as error:
            if len(entries) == 1:
                logger.exception("%s failed in the database", kind.name)
                entries[0].error = StageError(f"the database refused it: {type(error).__name__}")
                return []
        return [hint for entry in entries for hint in self._commit(kind, [entry])]

    def _commit_together(self, kind: _Kind, entries: list[_Entry]) -> list[Hint]:
        worker_id = self.worker.worker_id
        items = [entry.item for entry in entries]
        match kind:
            case _Kind.COMPLETE:
                return _note_outcomes(entries, self._jobs.complete(items))
            case _Kind.FAIL:
                for entry in entries:
                    entry.result = self._jobs.fail(entry.item)
                return [hint for entry in entries for hint in entry.result.hints]
            case _Kind.RELEASE:
                return list(self._jobs.release(items, worker_id))
            case _Kind.CLAIM:
                hints = _hints_of(entries)
                _note_claims(entries, hints, self._jobs.claim(worker_id, list(hints)))
                return []

    def _count_held(self, kind: _Kind, entries: list[_Entry]) -> None:
        for entry in entries:
            match kind:
                case _Kind.CLAIM:
                    self._held.update(claim.stage_run_id for claim in entry.result or ())
                case _Kind.RELEASE:
                    self._held.discard(entry.item[0])
                case _:
                    self._held.discard(entry.item.stage_run_id)

    def _put_back(self, turn: _Turn) -> None:
        with self._changed:
            self._entries.extendleft(reversed(turn.entries))
            for report in turn.progress:
                self._progress.setdefault(report.stage_run_id, report)

    def _stop_fenced(self, error: OmniJobsError, turn: _Turn) -> None:
        """Nothing is written any more of what the worker does. What it held goes back to the others."""
        if not isinstance(error, Fenced):
            error = Fenced(str(error))
        with self._changed:
            self._fenced = error
            turn.entries.extend(self._entries)
            self._entries.clear()
        # A claim whose answer was lost may have been granted.
        held = self._held.union(run for entry in turn.entries if entry.kind is _Kind.CLAIM for run, _ in entry.item)
        for entry in turn.entries:
            entry.error = error
        self._on_loop(self._on_fenced, error)
        self._on_loop(_deliver, turn.entries)
        try:
            with self._registering:  # what registers now sees that it must not, or is retired here
                self._relay.send(self._jobs.retire_worker(self.worker.worker_id, fenced=error))
            # Others may have taken what it held for lost. It lives: these stage runs did not kill it.
            self._jobs.forgive(self.worker.worker_id, sorted(held))
        except Exception:
            logger.exception("what this worker held waits for the end of its lease")

    def _retire(self) -> None:
        try:
            with self._registering:
                self._relay.send(self._jobs.retire_worker(self.worker.worker_id))
        except Exception:
            logger.exception("could not retire, the lease will run out")

    def _on_loop(self, function: Callable[..., None], argument: Any) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(function, argument)


def _hints_of(entries: Sequence[_Entry]) -> dict[tuple[int, int], _Entry]:
    """Whose they are."""
    return {hint: entry for entry in entries for hint in entry.item}


def _note_claims(entries: Sequence[_Entry], hints: Mapping[tuple[int, int], _Entry], claims: Sequence[Claim]) -> None:
    for entry in entries:
        entry.result = []
    for claim in claims:
        hints[claim.stage_run_id, claim.attempt - 1].result.append(claim)


def _note_outcomes(entries: Sequence[_Entry], outcomes: Sequence[Outcome]) -> list[Hint]:
    """The hints to publish."""
    for entry, outcome in zip(entries, outcomes, strict=True):
        entry.result = outcome
    return [hint for outcome in outcomes for hint in outcome.hints]


def _deliver(entries: Sequence[_Entry]) -> None:
    for entry in entries:
        if entry.future.done():  # its asker was cancelled
            continue
        if entry.error is not None:
            entry.future.set_exception(entry.error)
        else:
            entry.future.set_result(entry.result)
