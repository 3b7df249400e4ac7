"""``Ledger``: the worker's database thread, and its group commits.

Everything that the executor asks of :class:`omni_jobs.jobs.Jobs` goes to one thread. While that writes, more asks
gather; together they are the next turn, in as few transactions as there can be: under load hundreds of completions
and claims share one, an idle worker's single claim goes at once. The thread also renews the worker's lease, so that a
busy event loop cannot lose it, and while the worker holds stage runs it checks which of them are to stop.

While the database does not answer the turn waits, and is tried again: a transaction whose COMMIT got no reply may
have happened, so only fencing gives one up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from omni_jobs.batch_thread import BatchThread
from omni_jobs.errors import DatabaseUnavailable, Fenced, SlotTaken, StageError
from omni_jobs.jobs import Claim, Completion, Failure, NewWorker, Outcome, ProgressReport
from workers.execution.turn import Ask, Turn, settle
from workers.execution.worker_slot import WorkerSlot

if TYPE_CHECKING:
    from omni_jobs.broker.relay import Relay
    from omni_jobs.jobs import Jobs
    from omni_jobs.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


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
        """Prepare the thread.

        ``on_cancel`` is called on the event loop with the ids of stage runs that are to stop, ``on_fenced`` when
        nothing of this worker's is written any more.
        """
        self.worker = worker
        self._jobs = jobs
        self._relay = relay
        self._settings = settings
        self._on_cancel = on_cancel
        self._on_fenced = on_fenced
        self._slot = WorkerSlot(jobs, worker, settings)
        self._thread: BatchThread[Turn] = BatchThread("ledger", self._handle, next_timer=self._next_timer)
        self._fenced: Fenced | None = None  # set by the thread, once
        # The loop's.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = Turn()  # and not handed over yet
        self._progress: dict[int, ProgressReport] = {}
        self._progress_at = 0.0  # not before then is progress handed over
        # The thread's.
        self._turn = Turn()  # not written yet
        self._held: set[int] = set()  # stage runs that are claimed and not reported yet
        self._renew_at = 0.0
        self._check_at = 0.0  # which stage runs are to stop, while any is held
        self._pause_s = 0.0
        self._retry_at = 0.0  # while the database is away
        self._close_by = 0.0

    # The worker's life.

    def take_slot(self, loop: asyncio.AbstractEventLoop, keep_trying: Callable[[], bool]) -> None:
        """Take the worker's slot, publish hints of the stage runs that a predecessor held, and keep the lease.

        Waits while the database is away, and while nobody can tell whether the slot's holder lives.
        Raises SlotTaken when the holder lives, and DatabaseUnavailable once ``keep_trying`` returns False.
        """
        self._loop = loop
        self._relay.send(self._slot.take(keep_trying))
        self._renew_at = time.monotonic() + self._settings.heartbeat_s
        self._thread.start()

    def serve(self, keep_trying: Callable[[], bool]) -> None:
        """Announce that the engine is loaded, so that claims are answered.

        Raises Fenced when the worker was fenced or asked to stop, and the errors of ``take_slot``.
        """
        self._relay.send(self._slot.serve(keep_trying))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write the reports that wait, retire the worker, and end the thread.

        Reports that cannot be written within ``timeout_s`` are lost: the lease's end queues their stage runs again.
        """
        self._slot.stop()
        self._close_by = time.monotonic() + timeout_s
        self._thread.put(Turn(last=True))
        self._thread.close(timeout_s + 1.0)

    # The executor's calls. All raise Fenced, and StageError for a report that the database refuses for good.

    async def claim(self, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        """Return the claims that these hints gave; a claim that an earlier call gave may come again."""
        return await self._ask(self._asked.claims, hints)

    async def complete(self, completion: Completion) -> Outcome:
        """Record an attempt's end; its payload and artifacts are recorded only if the outcome is ``won``."""
        return await self._ask(self._asked.completions, completion)

    async def fail(self, failure: Failure) -> Outcome:
        """Record an attempt's error."""
        return await self._ask(self._asked.failures, failure)

    async def release(self, stage_run_id: int, attempt: int) -> None:
        """Hand an unfinished stage run back: cancelled if its job is to stop, else queued again."""
        await self._ask(self._asked.releases, (stage_run_id, attempt))

    def report_progress(self, report: ProgressReport) -> None:
        """Record the newest progress of a stage run within ``progress_every_s``, unless it ends before."""
        if not self._progress:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self._progress_at - loop.time()), self._hand_over_progress)
        self._progress[report.stage_run_id] = report

    def forget_progress(self, stage_run_id: int) -> None:
        """Drop the progress of a stage run that has ended."""
        self._progress.pop(stage_run_id, None)

    async def _ask(self, asks: list[Ask[T, A]], argument: T) -> A:
        if self._fenced is not None:
            raise self._fenced
        loop = asyncio.get_running_loop()
        ask: Ask[T, A] = Ask(argument, loop.create_future())
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
        turn, self._asked = self._asked, Turn()
        self._thread.put(turn)

    def _hand_over_progress(self) -> None:
        if self._progress:
            self._thread.put(Turn(progress=self._progress))
            self._progress = {}
            self._progress_at = asyncio.get_running_loop().time() + self._settings.progress_every_s

    # The thread: its turns.

    def _next_timer(self) -> float | None:
        if self._fenced is not None:
            return None
        if self._retry_at:
            return self._retry_at
        return min(self._renew_at, self._check_at) if self._held else self._renew_at

    def _handle(self, turns: list[Turn]) -> None:
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
            self._renew_if_due()
            self._write(self._turn)
            self._check_cancels_if_due()
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

    def _renew_if_due(self) -> None:
        if time.monotonic() >= self._renew_at:
            # The next beat counts from here: a database that was away is not beaten at once for every beat missed.
            self._renew_at = time.monotonic() + self._settings.heartbeat_s
            self._stop_runs(self._slot.renew())

    def _check_cancels_if_due(self) -> None:
        if self._held and time.monotonic() >= self._check_at:
            self._stop_runs(self._jobs.unwanted(self.worker.worker_id))

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
        asks = self._turn.asks()
        for ask in asks:
            ask.error = fenced
        self._turn = Turn(last=self._turn.last)
        self._on_loop(settle, asks)

    # The thread: its transactions.

    def _write(self, turn: Turn) -> None:
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

    def _write_in_one(self, turn: Turn) -> None:
        """Write completions, and the claims that come in their place, in one transaction, unless that is refused."""
        hints = _by_hint(turn.claims)
        completions = [ask.argument for ask in turn.completions]
        try:
            outcomes, claims = self._jobs.complete_and_claim(completions, self.worker.worker_id, list(hints))
        except DatabaseUnavailable:
            raise
        except Fenced:
            return  # of the claims; the completions may still be recorded
        except Exception:
            logger.exception("a turn of %d failed in the database: in parts once more", turn.size)
            return
        self._note_outcomes(turn.completions, outcomes)
        self._note_claims(turn.claims, hints, claims)
        self._settle_all(turn.completions)
        self._settle_all(turn.claims)

    def _write_group(self, asks: list[Ask[T, A]], write: Callable[[list[Ask[T, A]]], None]) -> None:
        """Write all in one transaction. An error that one of them causes must not fail the others: then one by one."""
        if not asks:
            return
        try:
            write(asks)
        except (DatabaseUnavailable, Fenced):
            raise
        except Exception as error:
            if len(asks) > 1:
                while asks:
                    self._write_group(asks[:1], write)
                    del asks[0]
                return
            logger.exception("%s failed in the database", write.__name__)
            asks[0].error = StageError(f"the database refused it: {type(error).__name__}")
        self._settle_all(asks)

    def _complete(self, asks: list[Ask[Completion, Outcome]]) -> None:
        self._note_outcomes(asks, self._jobs.complete([ask.argument for ask in asks]))

    def _fail(self, asks: list[Ask[Failure, Outcome]]) -> None:
        self._note_outcomes(asks, [self._jobs.fail(ask.argument) for ask in asks])

    def _note_outcomes(self, asks: Sequence[Ask[Any, Outcome]], outcomes: Sequence[Outcome]) -> None:
        for ask, outcome in zip(asks, outcomes, strict=True):
            ask.answer = outcome
            self._held.discard(ask.argument.stage_run_id)
        self._relay.send([hint for outcome in outcomes for hint in outcome.hints])

    def _release(self, asks: list[Ask[tuple[int, int], None]]) -> None:
        self._relay.send(self._jobs.release([ask.argument for ask in asks], self.worker.worker_id))
        for ask in asks:
            ask.answer = None
            self._held.discard(ask.argument[0])

    def _claim(self, asks: list[Ask[Sequence[tuple[int, int]], list[Claim]]]) -> None:
        hints = _by_hint(asks)
        self._note_claims(asks, hints, self._jobs.claim(self.worker.worker_id, list(hints)))

    def _note_claims(
        self,
        asks: Sequence[Ask[Any, list[Claim]]],
        hints: Mapping[tuple[int, int], Ask[Any, list[Claim]]],
        claims: Sequence[Claim],
    ) -> None:
        for ask in asks:
            ask.answer = []
        for claim in claims:
            hints[claim.hint].answer.append(claim)
            self._held.add(claim.stage_run_id)

    def _settle_all(self, asks: list[Ask[T, A]]) -> None:
        """Answer the asks on the loop, and take them out of their turn."""
        self._on_loop(settle, asks.copy())
        asks.clear()

    def _on_loop(self, function: Callable[[Any], None], argument: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(function, argument)


def _by_hint(
    asks: Sequence[Ask[Sequence[tuple[int, int]], list[Claim]]],
) -> dict[tuple[int, int], Ask[Sequence[tuple[int, int]], list[Claim]]]:
    """Return the asks by each of their hints."""
    return {hint: ask for ask in asks for hint in ask.argument}
