"""The executor: claim → load → run → store → complete.

A charter: what belongs here is one stage run's way through a worker, and how many go
at once. What it computes is the stage's business (``workers.stages.stage``), what is written
where and when is the ledger's, how hints arrive is the pool's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

from omni_jobs.errors import (
    EngineDead,
    Fenced,
    ModelError,
    OmniJobsError,
    OutOfMemory,
    StageError,
)
from omni_jobs.jobs import Claim, Completion, Failure, ProgressReport
from omni_jobs.storage import ObjectStore
from workers.execution.handoff import HandOff
from workers.execution.time_limit import TimeLimit
from workers.execution.waiting_hints import WaitingHints
from workers.stages.types import OmniModelRunnerOutput, Progress, StageInput

if TYPE_CHECKING:
    from omni_jobs.settings import Settings
    from workers.execution.ledger import Ledger
    from workers.stages.stage import StageLLM

__all__ = ["Executor"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_IO_THREADS = 8
_MOST_STUCK = _IO_THREADS // 2  # threads whose storage call goes on although nobody waits for it any more
_LAST_WORDS_S = 5.0  # for the database to take what a stopping worker reports; then the lease's end settles it


class _Ending(Enum):
    """Why a stage run was stopped from outside."""

    HAND_BACK = auto()  # its job is to stop, or this worker is
    ABANDON = auto()  # this worker is fenced: whatever it wrote now would be wrong
    TIME_IS_UP = auto()  # it fails


@dataclass(eq=False, slots=True)
class _InFlight:
    claim: Claim
    since: float = field(default_factory=time.time)  # when it was claimed, in seconds of the epoch
    task: asyncio.Task[None] | None = None
    started: bool = False  # a task cancelled before its first step never runs its ``finally``
    ending: _Ending | None = None
    reporting: bool = False  # its end is on its way to the database: too late to stop it
    timer: asyncio.TimerHandle | TimeLimit | None = None  # when it is told to stop, and then when it must have stopped


class Executor:
    """Holds up to ``slots`` stage runs of one stage in flight, on one event loop."""

    def __init__(
        self,
        llm: StageLLM,
        ledger: Ledger,
        store: ObjectStore,
        settings: Settings,
        *,
        slots: int,
        on_room: Callable[[], None],
        on_broken: Callable[[str], None],
    ) -> None:
        """``on_room``: a slot became free. ``on_broken``: this worker cannot go on, and why."""
        self._llm = llm
        self._stage = llm.stage
        self._ledger = ledger
        self._handoff = HandOff(self._stage, store, ledger.worker.worker_id, inline_bytes=settings.inline_payload_bytes)
        self._settings = settings
        self._on_room = on_room
        self._on_broken = on_broken
        self.slots = slots
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_IO_THREADS, thread_name_prefix="stage-io")
        # Hints: offered (counted by the offering thread) → waiting → claiming → settled. Two counters
        # with one writer each, so that the offering thread may ask for ``room`` without a lock.
        self._offered = 0
        self._settled = 0
        self._waiting = WaitingHints()
        self._claiming: set[tuple[int, int]] = set()
        self._claims: set[asyncio.Task[None]] = set()
        self._in_flight: dict[int, _InFlight] = {}
        self.ended = 0  # stage runs that were in flight here, whatever their end
        self._suspect_runs = False  # nothing is claimed beside it
        self._stuck_threads = 0
        self._taking = True
        self._using_room = False  # it is about to

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def claims_in_flight(self) -> list[tuple[Claim, float]]:
        """What is in flight at this moment, and since when (seconds of the epoch). For any thread."""
        return [(run.claim, run.since) for run in tuple(self._in_flight.values())]

    @property
    def hints_in_hand(self) -> int:
        """Offered, and neither claimed nor dropped yet."""
        return self._offered - self._settled

    @property
    def room(self) -> int:
        """How many more hints are of use; asked by the thread that offers."""
        if not self._taking or self._suspect_runs or self._waiting.has_suspects:
            return 0
        return self.slots - len(self._in_flight) - self.hints_in_hand

    # Hints.

    def offer(self, hints: Sequence[tuple[int, int]]) -> None:
        """Take hints ``(stage run id, attempt)``; the only method for another thread, always the same one."""
        self._offered += len(hints)
        self._loop.call_soon_threadsafe(self._admit, hints)

    def _admit(self, hints: Iterable[tuple[int, int]]) -> None:
        for hint in hints:
            stage_run_id, _ = hint
            if not self._taking or stage_run_id in self._in_flight or hint in self._claiming:
                self._settled += 1
            else:
                self._waiting.add(hint)
        self._claim_waiting()

    def _claim_waiting(self) -> None:
        if self._suspect_runs:
            return
        busy = len(self._in_flight) + len(self._claiming)
        batch: list[tuple[int, int]] = []
        for hint in self._waiting.take(self.slots - busy, idle=not busy):
            if hint in self._claiming or hint[0] in self._in_flight:
                self._settled += 1
            else:
                self._claiming.add(hint)
                batch.append(hint)
        if batch:
            task = self._loop.create_task(self._claim(batch))
            self._claims.add(task)
            task.add_done_callback(self._claims.discard)

    # One stage run.

    async def _claim(self, hints: Sequence[tuple[int, int]]) -> None:
        """Claim what can be claimed; drop the other hints silently, they were stale."""
        try:
            claims = await self._ledger.claim(hints)
        except Fenced:
            claims = []
        except StageError:
            # What the database may have given away all the same must not stay ours.
            claims = []
            for stage_run_id, attempt in hints:
                await self._hand_back(stage_run_id, attempt + 1)
        finally:
            self._claiming.difference_update(hints)
            self._settled += len(hints)
        lonely = len(claims) == 1 and not self._in_flight and not self._claiming
        suspects = []
        for claim in claims:
            if claim.stage_run_id in self._in_flight:
                continue
            if claim.alone and not lonely:
                suspects.append(claim)
            else:
                self._start(claim)
        for claim in suspects:
            await self._set_apart(claim)
        self._make_room()

    async def _set_apart(self, claim: Claim) -> None:
        """A suspect in company: hand it back, and claim it again when nothing else is here."""
        logger.warning("stage run %d of %s is to run alone: it waits for its turn", claim.stage_run_id, claim.job_id)
        await self._hand_back(claim.stage_run_id, claim.attempt)
        if self._taking:
            self._waiting.set_apart((claim.stage_run_id, claim.attempt))
            self._settled -= 1

    def _start(self, claim: Claim) -> None:
        run = _InFlight(claim)
        self._suspect_runs = claim.alone
        self._in_flight[claim.stage_run_id] = run
        run.task = self._loop.create_task(self._carry(run), name=f"stage run {claim.stage_run_id}")

    async def _carry(self, run: _InFlight) -> None:
        """One claimed stage run to its end, whatever end that is."""
        claim = run.claim
        run.started = True
        try:
            if run.ending is _Ending.ABANDON:
                return
            if run.ending is not None or not self._taking or not self._is_ours(claim):
                await self._hand_back(claim.stage_run_id, claim.attempt)
                return
            run.timer = TimeLimit(self._stage.config.time_limit_s, lambda: self._stop(run, _Ending.TIME_IS_UP))
            completion = await self._execute(claim, run.timer)
            run.reporting = True
            await self._complete(claim, completion)
        except asyncio.CancelledError:
            if run.ending is _Ending.ABANDON:
                raise
            if not self._llm.healthy:
                # It may be what killed the engine: that counts, or it would go on for ever.
                await self._fail(claim, EngineDead(stage=self._stage.name))
            elif run.ending is _Ending.TIME_IS_UP:
                await self._fail(claim, self._stage.time_limit_exceeded())
            else:
                await self._hand_back(claim.stage_run_id, claim.attempt)
            raise
        except Fenced:
            logger.warning("stage run %d: abandoned", claim.stage_run_id)
        except Exception as error:  # noqa: BLE001 — whatever the model's code raises ends this stage run alone
            run.reporting = True
            await self._fail(claim, self._as_error(claim, error))
        finally:
            del self._in_flight[claim.stage_run_id]
            self.ended += 1
            self._suspect_runs = False  # if one ran, this was it
            if run.timer is not None:
                run.timer.cancel()
            self._ledger.forget_progress(claim.stage_run_id)
            self._make_room()

    async def _execute(self, claim: Claim, limit: TimeLimit) -> Completion:
        stage_input = await self._load(claim)
        output = await self._run(claim, stage_input, limit)
        try:
            return await self._keep(claim, stage_input, output)
        finally:
            output.free()

    # Load.

    async def _load(self, claim: Claim) -> StageInput:
        """What the stage's input is made from: the request, its media, the payloads of earlier stages."""
        if self._handoff.needs_store(claim):
            return await self._in_thread(lambda: self._handoff.source(claim))
        return self._handoff.source(claim)

    # Run.

    async def _run(self, claim: Claim, stage_input: StageInput, limit: TimeLimit) -> OmniModelRunnerOutput:
        def report(progress: Progress) -> None:
            limit.see(progress)
            self._ledger.report_progress(
                ProgressReport(
                    stage_run_id=claim.stage_run_id,
                    attempt=claim.attempt,
                    done=progress.done,
                    total=progress.total,
                    unit=progress.unit,
                    text=progress.text,
                )
            )

        return await self._llm.generate(stage_input, report)

    # Store.

    async def _keep(self, claim: Claim, stage_input: StageInput, output: OmniModelRunnerOutput) -> Completion:
        """Payload and artifacts in the object store, or inline, before anything says that they exist."""
        payload = self._handoff.payload(claim, stage_input, output)
        if self._handoff.makes_artifacts or not self._handoff.fits_inline(payload):
            return await self._in_thread(lambda: self._handoff.complete(claim, stage_input, output, payload))
        return self._handoff.complete(claim, stage_input, output, payload)

    # Complete, or not.

    async def _complete(self, claim: Claim, completion: Completion) -> None:
        outcome = await self._ledger.complete(completion)
        if not outcome.won:
            logger.info("stage run %d: attempt %d had lost already", claim.stage_run_id, claim.attempt)
            await self._in_thread(lambda: self._handoff.forget(completion))

    async def _fail(self, claim: Claim, error: OmniJobsError) -> None:
        logger.warning("stage run %d of %s: attempt %d: %s", claim.stage_run_id, claim.job_id, claim.attempt, error)
        engine_dead = isinstance(error, EngineDead) or not self._llm.healthy
        if engine_dead:
            # Before the report: its next attempt is hinted at at once, and would only die here again.
            self._take_no_more()
        try:
            await self._ledger.fail(Failure(claim.stage_run_id, claim.attempt, self._ledger.worker.worker_id, error))
        except Fenced:
            return
        except StageError as trouble:
            # A stage run whose end cannot be recorded would stay ours as long as we live.
            self._on_broken(f"the end of stage run {claim.stage_run_id} cannot be recorded: {trouble}")
        if engine_dead:
            self._on_broken("the engine is gone")

    async def _hand_back(self, stage_run_id: int, attempt: int) -> None:
        try:
            await self._ledger.release(stage_run_id, attempt)
        except Fenced:
            return
        except StageError as trouble:
            self._on_broken(f"stage run {stage_run_id} cannot be handed back: {trouble}")

    def _as_error(self, claim: Claim, error: Exception) -> OmniJobsError:
        """The one place where an exception becomes an error of ours.

        Ours stay what they are. Memory may be there on another attempt. Everything else is
        the model's code meeting an input it was not written for: final, with a traceback in the log.
        """
        if isinstance(error, OmniJobsError):
            found = error
        elif isinstance(error, MemoryError):
            found = OutOfMemory()
        else:
            logger.error("stage run %d of %s", claim.stage_run_id, claim.job_id, exc_info=error)
            found = ModelError(f"{type(error).__name__}: {error}")
        found.stage = found.stage or self._stage.name
        return found

    def _is_ours(self, claim: Claim) -> bool:
        ours = claim.stage == self._stage.name and claim.pipeline == self._stage.pipeline.name
        if not ours:
            logger.error("a hint for %s.%s came to %s", claim.pipeline, claim.stage, self._stage.name)
        return ours

    # Ends.

    def stop_runs(self, stage_run_ids: Iterable[int]) -> None:
        """Stop these: their jobs are to end. What is not in flight, or as good as done, is passed over."""
        for stage_run_id in stage_run_ids:
            run = self._in_flight.get(stage_run_id)
            if run is not None:
                self._stop(run, _Ending.HAND_BACK)

    def abandon(self) -> None:
        """Fenced: stop everything at once and write nothing."""
        self._take_no_more()
        for run in list(self._in_flight.values()):
            run.reporting = False
            self._stop(run, _Ending.ABANDON)

    async def drain(self, within_s: float, hurry: asyncio.Event) -> None:
        """Take nothing more; finish what is done within the time, or until ``hurry``; hand back the rest."""
        self._take_no_more()
        if self._claims:
            await asyncio.wait(self._claims, timeout=_LAST_WORDS_S)
        hurried = self._loop.create_task(hurry.wait())
        deadline = self._loop.time() + within_s
        while (tasks := self._tasks()) and not hurry.is_set():
            left = deadline - self._loop.time()
            if left <= 0:
                break
            await asyncio.wait({*tasks, hurried}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for run in list(self._in_flight.values()):
            self._stop(run, _Ending.HAND_BACK)
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        self._threads.shutdown(wait=False)

    def _take_no_more(self) -> None:
        self._taking = False
        self._settled += self._waiting.clear()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {run.task for run in self._in_flight.values() if run.task is not None}

    def _stop(self, run: _InFlight, ending: _Ending) -> None:
        if run.task is None or run.reporting or run.ending is not None:
            return
        run.ending = ending
        if run.started:
            run.task.cancel()
        if run.timer is not None:
            run.timer.cancel()
        if ending is not _Ending.ABANDON:
            run.timer = self._loop.call_later(self._settings.stop_limit_s, self._give_up_on, run)

    def _give_up_on(self, run: _InFlight) -> None:
        """What does not stop when it is told to holds its job and this worker's slot: only a new worker helps."""
        # A report waits for the database, which may be away for longer than this.
        if not run.reporting and self._in_flight.get(run.claim.stage_run_id) is run:
            self._on_broken(f"stage run {run.claim.stage_run_id} does not stop")

    def _make_room(self) -> None:
        """Slots are free: what is free in one turn of the loop is used at once, in one claim."""
        if not self._using_room:
            self._using_room = True
            self._loop.call_soon(self._use_room)

    def _use_room(self) -> None:
        self._using_room = False
        self._claim_waiting()
        self._on_room()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Storage calls block. One that hangs keeps its thread when nobody waits for it any more."""
        call = self._threads.submit(function)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancel() and not call.done():
                self._stuck_threads += 1
                call.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._unstick))
                if self._stuck_threads >= _MOST_STUCK:
                    self._on_broken(f"{self._stuck_threads} storage calls hang")
            raise

    def _unstick(self) -> None:
        self._stuck_threads -= 1
