"""``Ledger``: the worker's database thread, and its group commits.

Everything that the executor asks of :class:`omni_jobs.jobs.Jobs` goes to one thread. While that writes, more calls
gather. Together they are the next batch, in as few transactions as there can be: under load hundreds of completions
and claims share one, an idle worker's single claim goes at once. The thread also renews the worker's lease, so that a
busy event loop cannot lose it, and while the worker holds stage runs it checks which of them are to stop, and which are
watched.

While the database does not answer, the batch waits and is tried again. It is not given up before the worker is fenced
or closes, because a transaction whose COMMIT got no reply may have happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from omni_jobs.batch_thread import BatchThread
from omni_jobs.broker.relay import Relay
from omni_jobs.errors import DatabaseUnavailable, Fenced, OmniJobsError, SlotTaken, StageError
from omni_jobs.jobs import (
    Claims,
    Jobs,
    NewSnapshot,
    NewWorker,
    Outcome,
    ProgressReport,
    Report,
    TextPiece,
    Wishes,
)
from omni_jobs.observers import Observers
from omni_jobs.settings import Settings
from workers.execution.observers.ledger_observer import LedgerObserver
from workers.execution.observers.run_times import RunTimes
from workers.execution.progress_reports import NewestReports, WatchedRuns
from workers.execution.worker_slot import WorkerSlot

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0  # well below the lease, which rescuers wait for after an outage


class _Ask(NamedTuple, Generic[T, A]):
    """A call of the executor, and the future of its answer."""

    argument: T
    answer: asyncio.Future[A]


class _Wanted(NamedTuple):
    """The arguments of a claim."""

    at_most: int
    of_high: int
    is_idle: bool


@dataclass(eq=False, slots=True)
class _Batch:
    """What the thread writes together, in this order: claims last, because ends free slots.

    Snapshots come before the end of their attempt, after which the next one goes on from there.
    """

    snapshots: list[_Ask[NewSnapshot, bool]] = field(default_factory=list)
    reports: list[_Ask[Report, Outcome]] = field(default_factory=list)
    claims: list[_Ask[_Wanted, Claims]] = field(default_factory=list)
    progress: dict[int, ProgressReport] = field(default_factory=dict)
    pieces: list[TextPiece] = field(default_factory=list)
    last: bool = False  # the worker retires after it

    @property
    def asks(self) -> Sequence[list[_Ask[Any, Any]]]:
        """All asks: snapshots, reports, claims."""
        return self.snapshots, self.reports, self.claims

    @property
    def size(self) -> int:
        """The number of asks."""
        return sum(map(len, self.asks))

    def add(self, later: _Batch) -> None:
        """Take over what a later batch holds."""
        for asks, more in zip(self.asks, later.asks, strict=True):
            asks.extend(more)
        self.progress |= later.progress
        self.pieces += later.pieces
        self.last |= later.last


class Ledger:
    """Claims, reports and renews for one worker: the executor's only way to the database.

    Call the coroutines on one event loop, and ``take_slot``, ``serve`` and ``close`` in a thread, because they block.
    A coroutine waits while the database is away. It raises Fenced once this worker is fenced or has retired.

    The executor's calls gather on the loop. A batch goes to the thread through its queue, and the answers come back
    with ``_on_loop``: the loop reads nothing of the thread's but ``is_paused`` and ``_fenced``.
    """

    def __init__(
        self,
        jobs: Jobs,
        worker: NewWorker,
        relay: Relay,
        settings: Settings,
        *,
        keep_trying: Callable[[], bool],
        on_cancel: Callable[[Sequence[int]], None],
        on_pause: Callable[[bool], None],
        on_fenced: Callable[[Fenced], None],
        observers: Iterable[LedgerObserver] = (),
        stats: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """Prepare the thread, which ``take_slot`` starts, and which tells the observers what it has recorded.

        ``keep_trying`` is asked, before the worker serves, whether to wait on for a database that is away. ``stats``
        is asked, with each renewal of the lease, for what the worker's row is to keep of its counts.
        On the event loop are called: ``on_cancel`` with the ids of stage runs that are to stop, ``on_pause`` with
        True when the stage is paused and with False when it is resumed, and ``on_fenced`` with the error once this
        worker is fenced.
        """
        self.worker = worker
        self.is_paused = False  # the stage, as of ``serve`` or the last renewal
        self._jobs = jobs
        self._relay = relay
        self._settings = settings
        self._on_cancel = on_cancel
        self._on_pause = on_pause
        self._on_fenced = on_fenced
        self._slot = WorkerSlot(jobs, worker, settings, keep_trying)
        self._thread: BatchThread[_Batch] = BatchThread("ledger", self._handle, next_timer=self._next_timer)
        self._fenced: Fenced | None = None  # set by the thread, once
        # The loop's.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = _Batch()  # and not handed over yet
        self._watched = WatchedRuns()
        self._progress = NewestReports(settings.progress_every_s, self._hand_over_progress)
        self._watched_progress = NewestReports(settings.watched_every_s, self._hand_over_watched)
        # The thread's.
        self._batch = _Batch()  # not written yet
        self._held: set[int] = set()  # the stage runs that were claimed and are not reported yet
        self._stats = stats
        self._written_stats: Mapping[str, Any] | None = None  # with the last renewal that had some
        self._run_times = RunTimes()
        self._observers = Observers[LedgerObserver]((self._run_times, *observers))
        self._claims_again = False  # the last claim may have been granted, and its answer lost
        self._renew_at = 0.0
        self._check_at = 0.0  # which stage runs are to stop, while any is held
        self._pause_s = 0.0
        self._retry_at = 0.0  # while the database is away
        self._close_by = 0.0
        self._engine_down = False

    # The worker's life.

    def take_slot(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the worker's slot, ring for a predecessor's stage runs, and renew the lease from then on.

        It waits and raises as ``WorkerSlot.take``; ``close`` ends the wait. ``loop`` is the coroutines' event loop.
        """
        self._loop = loop
        self._relay.ring(self._slot.take())
        self._renew_at = time.monotonic() + self._settings.heartbeat_s
        self._thread.start()

    def describe(self, info: Mapping[str, Any]) -> None:
        """Say what ``serve`` records of this worker's process, a WorkerInfo as JSON. Call it before."""
        self._slot.describe(info)

    def serve(self) -> None:
        """Record that the engine is loaded, so that this worker may claim from now on, unless ``is_paused`` is true.

        It raises as ``WorkerSlot.serve``.
        """
        self.is_paused = self._slot.is_paused()
        self._relay.ring(self._slot.serve())

    def close(self, timeout_s: float = 5.0, *, engine_down: bool = False) -> None:
        """Write the reports that wait, give up the worker's slot and lease, and end the thread.

        ``engine_down``: this worker ends because its engine died, hangs or cannot be loaded.

        Reports not written within ``timeout_s`` are lost: their stage runs are queued again, at the latest by the
        lease's end.
        """
        self._slot.stop()
        self._engine_down = engine_down
        self._close_by = time.monotonic() + timeout_s
        self._thread.put(_Batch(last=True))
        self._thread.close(timeout_s + 1.0)

    # The executor's calls, on the event loop.

    async def claim(self, at_most: int, *, of_high: int = 0, is_idle: bool) -> Claims:
        """Claim up to ``at_most`` stage runs and up to ``of_high`` further ones of high jobs, and return the claims.

        :func:`omni_jobs.jobs.life.claim.claim` explains it. Ask for no other before this is answered. Raises Fenced,
        and StageError when the database refuses.
        """
        claims = await self._ask(self._asked.claims, _Wanted(at_most, of_high, is_idle))
        for claim in claims.claims:
            if claim.watched_since is not None:
                self._watched.add(claim.stage_run_id, claim.watched_since)
        return claims

    async def report(self, report: Report) -> Outcome:
        """Record how an attempt has ended, ring for what follows, and return the outcome, perhaps not ``won``.

        Of a completion payload and artifacts are not recorded then, so the caller deletes their objects.
        Raises Fenced, and StageError when the database refuses the report for good.
        """
        return await self._ask(self._asked.reports, report)

    def give_up(self, reports: Sequence[Report]) -> Sequence[asyncio.Future[Outcome]]:
        """Report how attempts have ended. For any thread, because the event loop may stand still.

        Return a future for each, as ``report`` would answer, for the loop; none once no report counts.
        ``close`` writes them too.
        """
        if self._loop is None or self._fenced is not None:
            return ()
        asks = [_Ask(report, self._loop.create_future()) for report in reports]
        answers = [ask.answer for ask in asks]
        self._thread.put(_Batch(reports=asks))
        return answers

    async def record_snapshot(self, snapshot: NewSnapshot) -> bool:
        """Record an attempt's stored snapshot, and return whether it is; False: the attempt is over.

        Raises Fenced and StageError like ``report``.
        """
        return await self._ask(self._asked.snapshots, snapshot)

    def report_progress(self, report: ProgressReport) -> None:
        """Keep this as the newest progress of a stage run. The newest is written every ``progress_every_s`` seconds.

        If the stage run is watched, it is written every ``watched_every_s`` seconds, and its text in pieces.
        """
        if report.stage_run_id in self._watched:
            self._progress.forget(report.stage_run_id)
            self._watched_progress.put(report)
        else:
            self._progress.put(report)

    def finish_text(self, stage_run_id: int) -> None:
        """Write at once what is unwritten of a watched stage run, because no result may have the end of its text."""
        if stage_run_id in self._watched:
            self._watched_progress.flush()

    def forget_progress(self, stage_run_id: int) -> None:
        """Drop the unwritten progress of a stage run that has ended, unless the thread has it already."""
        self._progress.forget(stage_run_id)
        self._watched_progress.forget(stage_run_id)
        self._watched.forget(stage_run_id)

    async def _ask(self, asks: list[_Ask[T, A]], argument: T) -> A:
        if self._fenced is not None:
            raise self._fenced
        loop = asyncio.get_running_loop()
        ask: _Ask[T, A] = _Ask(argument, loop.create_future())
        asks.append(ask)
        if self._asked.size == 1:
            loop.call_soon(self._hand_over, 0)
        return await ask.answer

    def _hand_over(self, before: int) -> None:
        """Hand the asks to the thread when a turn of the event loop has added none to the ``before`` that were there.

        Waiting that turn lets many asks share a transaction: those who are answered together ask together.
        """
        asked = self._asked.size
        if asked > before:
            asyncio.get_running_loop().call_soon(self._hand_over, asked)
            return
        batch, self._asked = self._asked, _Batch()
        self._thread.put(batch)

    def _hand_over_progress(self, progress: dict[int, ProgressReport]) -> None:
        self._thread.put(_Batch(progress=progress))

    def _hand_over_watched(self, progress: dict[int, ProgressReport]) -> None:
        batch = _Batch()
        for stage_run_id, report in progress.items():
            batch.progress[stage_run_id], piece = self._watched.take_piece(report)
            if piece is not None:
                batch.pieces.append(piece)
        self._thread.put(batch)

    # The thread: when it acts.

    def _next_timer(self) -> float | None:
        if self._fenced is not None:
            return None
        if self._retry_at:
            return self._retry_at
        return min(self._renew_at, self._check_at) if self._held else self._renew_at

    def _handle(self, batches: list[_Batch]) -> None:
        for batch in batches:
            self._batch.add(batch)
        if self._fenced is not None:
            self._refuse(self._fenced)
        elif time.monotonic() >= self._retry_at:
            self._attempt()
        if self._batch.last:
            self._finish()

    def _attempt(self) -> None:
        """Renew the lease and write the batch. While the database is away the batch stays, to be tried again."""
        try:
            if (began := time.monotonic()) >= self._renew_at:
                self._renew()
                self._renew_at = began + self._settings.heartbeat_s
            self._write(self._batch)
            if self._held and time.monotonic() >= self._check_at:
                self._heed(self._jobs.wishes(self.worker.worker_id))
            self._pause_s = self._retry_at = 0.0
        except DatabaseUnavailable as error:
            logger.error("%d reports and claims wait: %s", self._batch.size, error)
            self._renew_at = 0.0  # before anything else, because the lease may be over by then
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._retry_at = time.monotonic() + self._pause_s
        except (Fenced, SlotTaken) as error:
            logger.critical("%s; another worker may hold its stage runs now", error)
            self._stop_fenced(error if isinstance(error, Fenced) else Fenced(str(error)))
        except Exception as error:
            # A bug. Without this thread the worker would hold its stage runs, and do nothing, for ever.
            logger.exception("the ledger is broken")
            self._stop_fenced(Fenced(f"the worker's ledger broke: {type(error).__name__}: {error}"))

    def _renew(self) -> None:
        stats = self._stats()
        news = None if stats == self._written_stats else stats
        renewal = self._slot.renew(self._run_times.mean(time.monotonic()), news)
        self._observers.tell(LedgerObserver.renewed)
        if renewal is None:
            return
        self._written_stats = stats
        self._heed(renewal.wishes)
        if renewal.is_paused != self.is_paused:
            self.is_paused = renewal.is_paused
            self._on_loop(self._on_pause, renewal.is_paused)

    def _finish(self) -> None:
        """Write the reports that wait until the time of ``close`` is over, then retire the worker."""
        self._batch.last = False
        while self._fenced is None and self._batch.size and time.monotonic() < self._close_by:
            time.sleep(_FIRST_PAUSE_S)
            self._attempt()
        if self._fenced is None:
            try:
                self._relay.ring(self._slot.retire(stats=self._stats(), engine_down=self._engine_down))
            except Exception:
                logger.exception("could not retire, the lease will run out")
            self._fenced = Fenced("this worker has retired")

    def _heed(self, wishes: Wishes) -> None:
        self._check_at = time.monotonic() + self._settings.cancel_check_s
        self._on_loop(self._watched.set, wishes.watched)
        if wishes.unwanted:
            self._on_loop(self._on_cancel, wishes.unwanted)

    def _stop_fenced(self, fenced: Fenced) -> None:
        """Write no report any more; queue the held stage runs again, without counting them as lost with the worker."""
        self._fenced = fenced
        self._slot.stop(fenced)
        self._on_loop(self._on_fenced, fenced)
        self._refuse(fenced)
        try:
            self._relay.ring(self._slot.retire(fenced, self._stats()))
            # Others may have counted its stage runs as lost with it. It lives, so they did not kill it.
            self._jobs.forgive(self.worker.worker_id)
        except Exception:
            logger.exception("this worker's stage runs wait for the end of its lease")

    def _refuse(self, fenced: Fenced) -> None:
        for asks in self._batch.asks:
            self._answer(asks, [fenced] * len(asks))
        self._batch.progress.clear()
        self._batch.pieces.clear()

    # The thread: its transactions.

    def _write(self, batch: _Batch) -> None:
        """Write a batch and answer it. Parts that are written leave it, so that it can be tried again.

        Raises DatabaseUnavailable, and Fenced when the worker has no lease.
        """
        self._write_group(batch.snapshots, self._jobs.record_snapshots)
        if batch.pieces:  # whoever sees that an attempt has succeeded shall find its whole text
            self._write_progress(batch)
        if batch.reports and batch.claims:
            self._write_in_one(batch)
        self._write_group(batch.reports, self._report)
        self._write_group(batch.claims, self._claim)
        if batch.progress:
            self._write_progress(batch)

    def _write_progress(self, batch: _Batch) -> None:
        self._jobs.report_progress(list(batch.progress.values()), batch.pieces)
        batch.progress, batch.pieces = {}, []

    def _write_in_one(self, batch: _Batch) -> None:
        """Write reports, and the claim that comes in their place, in one transaction, unless that is refused."""
        reports = [ask.argument for ask in batch.reports]
        [claim] = batch.claims
        try:
            claims = self._grant(claim.argument, reports)
        except DatabaseUnavailable:
            raise
        except Fenced:
            return  # of the claim; the reports may still be recorded
        except Exception:
            logger.exception("a batch of %d failed in the database: in parts once more", batch.size)
            return
        self._answer(batch.reports, claims.outcomes)
        self._answer(batch.claims, [claims])

    def _write_group(self, asks: list[_Ask[T, A]], write: Callable[[list[T]], Sequence[A]]) -> None:
        """Write all in one transaction. An error that one of them causes must not fail the others: then one by one."""
        if not asks:
            return
        try:
            self._answer(asks, write([ask.argument for ask in asks]))
        except (DatabaseUnavailable, Fenced):
            raise
        except Exception as error:
            if len(asks) > 1:
                while asks:
                    self._write_group(asks[:1], write)
                    del asks[0]
                return
            logger.exception("%s failed in the database", write.__name__)
            self._answer(asks, [StageError(f"the database refused it: {type(error).__name__}")])

    def _report(self, reports: list[Report]) -> Sequence[Outcome]:
        return self._note_ends(reports, self._jobs.report(reports))

    def _claim(self, asked: list[_Wanted]) -> Sequence[Claims]:
        [wanted] = asked
        return [self._grant(wanted)]

    def _grant(self, wanted: _Wanted, reports: Sequence[Report] = ()) -> Claims:
        """Return what ``Jobs`` answers to this claim, or to one before it whose answer was lost; note what it gave."""
        again, self._claims_again = self._claims_again, True  # until its answer is here
        claims = self._jobs.claim(
            self.worker.worker_id,
            wanted.at_most,
            reports=reports,
            of_high=wanted.of_high,
            is_idle=wanted.is_idle,
            held=self._held,
            again=again,
        )
        if reports:
            self._note_ends(reports, claims.outcomes)
        self._held.update(claim.stage_run_id for claim in claims.claims)  # one may be what was handed back just now
        self._claims_again = False
        self._observers.tell(LedgerObserver.claimed, claims.claims)
        return claims

    def _note_ends(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Note the stage runs as held no longer, ring for what follows them, and return the outcomes."""
        self._held.difference_update(report.stage_run_id for report in reports)
        self._observers.tell(LedgerObserver.ended, reports, outcomes)
        self._relay.ring({queue for outcome in outcomes for queue in outcome.queues})
        return outcomes

    def _answer(self, asks: list[_Ask[T, A]], answers: Sequence[A | OmniJobsError]) -> None:
        """Answer the asks on the event loop, and take them out of their batch."""
        self._on_loop(_settle, [(ask.answer, answer) for ask, answer in zip(asks, answers, strict=True)])
        asks.clear()

    def _on_loop(self, function: Callable[[Any], None], argument: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(function, argument)


def _settle(answers: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    for future, answer in answers:
        if future.done():  # the caller was cancelled
            continue
        if isinstance(answer, OmniJobsError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
