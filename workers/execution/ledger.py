"""``Ledger``: the worker's database thread, and its group commits.

Everything that the executor asks of :class:`omni_jobs.jobs.Jobs` goes to one thread. While that writes, more calls
gather. Together they are the next turn, in as few transactions as there can be: under load hundreds of completions
and claims share one, an idle worker's single claim goes at once. The thread also renews the worker's lease, so that a
busy event loop cannot lose it, and while the worker holds stage runs it checks which of them are to stop.

While the database does not answer, the turn waits and is tried again. It is not given up before the worker is fenced
or closes, because a transaction whose COMMIT got no reply may have happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from omni_jobs.batch_thread import BatchThread
from omni_jobs.broker.relay import Relay
from omni_jobs.errors import DatabaseUnavailable, Fenced, OmniJobsError, SlotTaken, StageError
from omni_jobs.jobs import Claim, Completion, Failure, Jobs, NewWorker, Outcome, ProgressReport
from omni_jobs.settings import Settings
from workers.execution.worker_slot import WorkerSlot

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class _Ask(NamedTuple, Generic[T, A]):
    """A call of the executor, and the future of its answer."""

    argument: T
    future: asyncio.Future[A]


@dataclass(eq=False, slots=True)
class _Turn:
    """The reports and claims that the thread writes together, in this order: ends first, because they free slots."""

    completions: list[_Ask[Completion, Outcome]] = field(default_factory=list)
    failures: list[_Ask[Failure, Outcome]] = field(default_factory=list)
    releases: list[_Ask[tuple[int, int], None]] = field(default_factory=list)
    claims: list[_Ask[Sequence[tuple[int, int]], list[Claim]]] = field(default_factory=list)
    progress: dict[int, ProgressReport] = field(default_factory=dict)
    last: bool = False  # the worker retires after it

    @property
    def asks(self) -> Sequence[list[_Ask[Any, Any]]]:
        return self.completions, self.failures, self.releases, self.claims

    @property
    def size(self) -> int:
        return sum(map(len, self.asks))

    def add(self, later: _Turn) -> None:
        for asks, more in zip(self.asks, later.asks, strict=True):
            asks.extend(more)
        self.progress |= later.progress
        self.last |= later.last


class Ledger:
    """Claims, reports and renews for one worker: the executor's only way to the database.

    Call the coroutines on one event loop, and ``take_slot``, ``serve`` and ``close`` in a thread, because they block.
    A coroutine waits while the database is away. It raises Fenced once this worker is fenced or has retired.
    """

    def __init__(
        self,
        jobs: Jobs,
        worker: NewWorker,
        relay: Relay,
        settings: Settings,
        *,
        keep_trying: Callable[[], bool],
        on_cancel: Callable[[list[int]], None],
        on_fenced: Callable[[Fenced], None],
    ) -> None:
        """Prepare the thread, which ``take_slot`` starts.

        ``keep_trying`` is asked, before the worker serves, whether to wait on for a database that is away.
        ``on_cancel`` is called on the event loop with the ids of stage runs that are to stop, and ``on_fenced`` with
        the error once this worker is fenced.
        """
        self.worker = worker
        self._jobs = jobs
        self._relay = relay
        self._settings = settings
        self._on_cancel = on_cancel
        self._on_fenced = on_fenced
        self._slot = WorkerSlot(jobs, worker, settings, keep_trying)
        self._thread: BatchThread[_Turn] = BatchThread("ledger", self._handle, next_timer=self._next_timer)
        self._fenced: Fenced | None = None  # set by the thread, once
        # The loop's.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = _Turn()  # and not handed over yet
        self._progress: dict[int, ProgressReport] = {}
        self._progress_at = 0.0  # not before then is progress handed over
        # The thread's.
        self._turn = _Turn()  # not written yet
        self._held: set[int] = set()  # stage runs that are claimed and not reported yet
        self._renew_at = 0.0
        self._check_at = 0.0  # which stage runs are to stop, while any is held
        self._pause_s = 0.0
        self._retry_at = 0.0  # while the database is away
        self._close_by = 0.0

    # The worker's life.

    def take_slot(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the worker's slot, publish the hints of a predecessor's stage runs, and renew the lease from then on.

        Waits while the database is away, and some heartbeats for a holder that may live: without a renewal it is dead.
        Raises SlotTaken when the holder lives or ``close`` ends the wait, and DatabaseUnavailable once ``keep_trying``
        returns False.
        ``loop`` is the event loop of the coroutines.
        """
        self._loop = loop
        self._relay.send(self._slot.take())
        self._renew_at = time.monotonic() + self._settings.heartbeat_s
        self._thread.start()

    def serve(self) -> None:
        """Record that the engine is loaded, so that this worker may claim from now on.

        Raises Fenced when the worker was fenced or asked to stop, SlotTaken when another one has its slot, and
        DatabaseUnavailable once ``keep_trying`` returns False.
        """
        self._relay.send(self._slot.serve())

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the reports that wait, give up the worker's slot and lease, and end the thread.

        Reports not written within ``timeout_s`` are lost: their stage runs are queued again, at the latest by the
        lease's end.
        """
        self._slot.stop()
        self._close_by = time.monotonic() + timeout_s
        self._thread.put(_Turn(last=True))
        self._thread.close(timeout_s + 1.0)

    # The executor's calls.

    async def claim(self, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        """Claim the stage runs of these hints and return the claims; a hint that was stale gives none.

        The same hint may give the same claim again, so the caller drops what is in flight here already.
        Raises Fenced, and StageError when the database refuses.
        """
        return await self._ask(self._asked.claims, hints)

    async def complete(self, completion: Completion) -> Outcome:
        """Record that an attempt has succeeded, publish its hints, and return the outcome, which may be not ``won``.

        Then the attempt was over, its job is to stop, or an artifact of its name is there, which fails the stage run.
        Payload and artifacts are not recorded, so the caller deletes their objects.
        Raises Fenced, and StageError when the database refuses the report for good.
        """
        return await self._ask(self._asked.completions, completion)

    async def fail(self, failure: Failure) -> Outcome:
        """Record that an attempt failed, publish its hints, and return the outcome; not ``won``: it was over already.

        Raises Fenced, and StageError when the database refuses the report for good.
        """
        return await self._ask(self._asked.failures, failure)

    async def release(self, stage_run_id: int, attempt: int) -> None:
        """Hand an unfinished stage run back: SQL cancels it if its job is to stop, else queues it again.

        Raises Fenced and StageError like ``complete``.
        """
        await self._ask(self._asked.releases, (stage_run_id, attempt))

    def report_progress(self, report: ProgressReport) -> None:
        """Keep this as the newest progress of a stage run. The newest is written every ``progress_every_s`` seconds."""
        if not self._progress:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._progress_at - loop.time()), self._hand_over_progress)
        self._progress[report.stage_run_id] = report

    def forget_progress(self, stage_run_id: int) -> None:
        """Drop the unwritten progress of a stage run that has ended, unless the thread has it already."""
        self._progress.pop(stage_run_id, None)

    async def _ask(self, asks: list[_Ask[T, A]], argument: T) -> A:
        if self._fenced is not None:
            raise self._fenced
        loop = asyncio.get_running_loop()
        ask: _Ask[T, A] = _Ask(argument, loop.create_future())
        asks.append(ask)
        if self._asked.size == 1:
            loop.call_soon(self._hand_over, 0)
        return await ask.future

    def _hand_over(self, before: int) -> None:
        """Give the thread the asks that gathered, once a whole round of the loop has asked no more than ``before``.

        A transaction costs nearly the same for many. An answer to many is followed by the asks of many.
        """
        asked = self._asked.size
        if asked > before:
            asyncio.get_running_loop().call_soon(self._hand_over, asked)
            return
        turn, self._asked = self._asked, _Turn()
        self._thread.put(turn)

    def _hand_over_progress(self) -> None:
        if self._progress:
            self._thread.put(_Turn(progress=self._progress))
            self._progress = {}
            self._progress_at = asyncio.get_running_loop().time() + self._settings.progress_every_s

    # The thread: its turns.

    def _next_timer(self) -> float | None:
        if self._fenced is not None:
            return None
        if self._retry_at:
            return self._retry_at
        return min(self._renew_at, self._check_at) if self._held else self._renew_at

    def _handle(self, turns: list[_Turn]) -> None:
        for turn in turns:
            self._turn.add(turn)
        if self._fenced is not None:
            self._refuse(self._fenced)
        elif time.monotonic() >= self._retry_at:
            self._attempt()
        if self._turn.last:
            self._finish()

    def _attempt(self) -> None:
        """Renew the lease and write the turn. While the database is away the turn stays, to be tried again."""
        try:
            if time.monotonic() >= self._renew_at:
                # The next beat counts from here: a database that was away is not beaten at once for every beat missed.
                self._renew_at = time.monotonic() + self._settings.heartbeat_s
                self._stop_runs(self._slot.renew())
            self._write(self._turn)
            if self._held and time.monotonic() >= self._check_at:
                self._stop_runs(self._jobs.unwanted(self.worker.worker_id))
            self._pause_s = self._retry_at = 0.0
        except DatabaseUnavailable as error:
            logger.error("%d reports and claims wait: %s", self._turn.size, error)
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._retry_at = time.monotonic() + self._pause_s
        except (Fenced, SlotTaken) as error:
            logger.critical("%s; another worker may hold its stage runs now", error)
            self._stop_fenced(error if isinstance(error, Fenced) else Fenced(str(error)))
        except Exception as error:
            # A bug. Without this thread the worker would hold its stage runs, and do nothing, for ever.
            logger.exception("the ledger is broken")
            self._stop_fenced(Fenced(f"the worker's ledger broke: {type(error).__name__}: {error}"))

    def _finish(self) -> None:
        """Write the reports that wait until the time of ``close`` is over, then retire the worker."""
        self._turn.last = False
        while self._fenced is None and self._turn.size and time.monotonic() < self._close_by:
            time.sleep(_FIRST_PAUSE_S)
            self._attempt()
        if self._fenced is None:
            try:
                self._relay.send(self._slot.retire())
            except Exception:
                logger.exception("could not retire, the lease will run out")
            self._fenced = Fenced("this worker has retired")

    def _stop_runs(self, stage_run_ids: Sequence[int]) -> None:
        self._check_at = time.monotonic() + self._settings.cancel_check_s
        if stage_run_ids:
            self._on_loop(self._on_cancel, stage_run_ids)

    def _stop_fenced(self, fenced: Fenced) -> None:
        """Write no report any more; queue the held stage runs again, without counting them as lost with the worker."""
        self._fenced = fenced
        self._slot.stop(fenced)
        # A claim whose answer was lost may have been granted.
        held = self._held.union(run for ask in self._turn.claims for run, _ in ask.argument)
        self._on_loop(self._on_fenced, fenced)
        self._refuse(fenced)
        try:
            self._relay.send(self._slot.retire(fenced))
            # Others may have counted its stage runs as lost with it. It lives, so they did not kill it.
            self._jobs.forgive(self.worker.worker_id, sorted(held))
        except Exception:
            logger.exception("this worker's stage runs wait for the end of its lease")

    def _refuse(self, fenced: Fenced) -> None:
        for asks in self._turn.asks:
            self._answer(asks, [fenced] * len(asks))
        self._turn.progress.clear()

    # The thread: its transactions.

    def _write(self, turn: _Turn) -> None:
        """Write a turn and answer it. Parts that are written leave it, so that it can be tried again."""
        if turn.completions and turn.claims and not (turn.failures or turn.releases):
            self._write_in_one(turn)
        self._write_group(turn.completions, self._complete)
        self._write_group(turn.failures, self._fail)
        self._write_group(turn.releases, self._release)
        self._write_group(turn.claims, self._claim)
        if turn.progress:
            self._jobs.report_progress(list(turn.progress.values()))
            turn.progress = {}

    def _write_in_one(self, turn: _Turn) -> None:
        """Write completions, and the claims that come in their place, in one transaction, unless that is refused."""
        completions = [ask.argument for ask in turn.completions]
        asked = [ask.argument for ask in turn.claims]
        hints = list(chain.from_iterable(asked))
        try:
            outcomes, claims = self._jobs.complete_and_claim(completions, self.worker.worker_id, hints)
        except DatabaseUnavailable:
            raise
        except Fenced:
            return  # of the claims; the completions may still be recorded
        except Exception:
            logger.exception("a turn of %d failed in the database: in parts once more", turn.size)
            return
        self._answer(turn.completions, self._note_ends(completions, outcomes))
        self._answer(turn.claims, self._note_claims(asked, claims))

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

    def _complete(self, completions: list[Completion]) -> Sequence[Outcome]:
        return self._note_ends(completions, self._jobs.complete(completions))

    def _fail(self, failures: list[Failure]) -> Sequence[Outcome]:
        return self._note_ends(failures, [self._jobs.fail(failure) for failure in failures])

    def _note_ends(self, ends: Sequence[Completion | Failure], outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        self._held.difference_update(end.stage_run_id for end in ends)
        self._relay.send([hint for outcome in outcomes for hint in outcome.hints])
        return outcomes

    def _release(self, attempts: list[tuple[int, int]]) -> Sequence[None]:
        self._relay.send(self._jobs.release(attempts, self.worker.worker_id))
        self._held.difference_update(stage_run_id for stage_run_id, _ in attempts)
        return [None] * len(attempts)

    def _claim(self, asked: list[Sequence[tuple[int, int]]]) -> Sequence[list[Claim]]:
        hints = list(chain.from_iterable(asked))
        return self._note_claims(asked, self._jobs.claim(self.worker.worker_id, hints))

    def _note_claims(self, asked: list[Sequence[tuple[int, int]]], claims: Sequence[Claim]) -> Sequence[list[Claim]]:
        """Note the stage runs as held; return the claims of each ask's hints."""
        self._held.update(claim.stage_run_id for claim in claims)
        by_hint = {claim.hint: claim for claim in claims}
        return [[by_hint[hint] for hint in hints if hint in by_hint] for hints in asked]

    def _answer(self, asks: list[_Ask[T, A]], answers: Sequence[A | OmniJobsError]) -> None:
        """Answer the asks on the event loop, and take them out of their turn."""
        self._on_loop(_settle, [(ask.future, answer) for ask, answer in zip(asks, answers, strict=True)])
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
