"""The executor: it takes each stage run of a worker through claim → load → run → store → complete.

A charter: only the order of these steps belongs here, and how many stage runs are in flight at once. The pool brings
doorbells, the ledger writes to SQL, the hand-off reads and writes objects, and ``StageLLM`` computes.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omni_jobs.errors import Fenced, StageError
from omni_jobs.jobs import Claim, Claims, Completion, StepSeconds
from omni_jobs.logs.context import RunNames, current_run
from omni_jobs.observers import Observers
from omni_jobs.priority import Priority
from omni_jobs.settings import Settings
from omni_jobs.storage import ObjectStore
from omni_jobs.tracing.traceparent import trace_of
from workers.execution.handoff import HandOff
from workers.execution.hang_watch import Hang, HangWatch
from workers.execution.ledger import Ledger
from workers.execution.observers.run_observer import COMPLETED, LOST, ObservedRun, RunObserver, RunResult
from workers.execution.run_ends import RunEnds, result_of
from workers.execution.run_time_limit import TimeLimit
from workers.execution.slots import Slots
from workers.execution.snapshots import StageSnapshots
from workers.execution.stage_llm import StageLLM
from workers.runners.runner import CURRENT_RUN
from workers.stages.types import Progress

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 5.0  # for the database to take the reports of a stopping worker; later the lease's end settles them


@dataclass(eq=False, slots=True)
class _InFlight:
    """A stage run from its claim until its end is recorded."""

    claim: Claim
    observed: ObservedRun
    task: asyncio.Task[None] = field(init=False)
    started: bool = False  # a task that is cancelled before its first step never runs its ``finally``
    stopping: bool = False  # it was asked to stop
    reporting: bool = False  # its end is on its way to the database: it is too late to stop it
    hangs: bool = False  # or its engine does: its end is recorded, whatever becomes of it here


class Executor:
    """Claims stage runs of one stage and carries up to ``slots`` of them at once, on one event loop.

    It claims when a doorbell rings, when a slot becomes free while more may wait, and every ``poll_s`` seconds, because
    doorbells may be lost and pauses end without one. One claim is under way at a time. While only slots that are kept
    for high jobs are free, it claims stage runs of such jobs alone.
    """

    def __init__(
        self,
        llm: StageLLM,
        ledger: Ledger,
        store: ObjectStore,
        settings: Settings,
        *,
        slots: Slots,
        observers: Observers[RunObserver],
        on_room: Callable[[], None],
        on_more: Callable[[Priority], None],
        on_broken: Callable[[str], None],
    ) -> None:
        """Bind the executor to the running event loop, and claim for the first time.

        It tells the observers of each step of a stage run. It calls ``on_room`` when a doorbell may be of use,
        ``on_more`` when stage runs wait for which it has no slot and no doorbell has told other workers, with HIGH if
        they are of high jobs, and ``on_broken`` with the reason when the worker must end, all on that loop.
        """
        self._llm = llm
        self._stage = llm.stage
        self._ledger = ledger
        self._handoff = HandOff(
            self._stage, store, ledger.worker.worker_id, inline_bytes=settings.inline_payload_bytes, on_broken=on_broken
        )
        self._snapshots = StageSnapshots(self._stage, store, ledger, llm.snapshot_origin)
        self._ends = RunEnds(llm, ledger, steps_of=self._steps_of, take_no_more=self._take_no_more, on_broken=on_broken)
        self._watch = HangWatch(
            stop_limit_s=settings.stop_limit_s,
            stall_limit_s=settings.engine_stall_s,
            computing=lambda: llm.computing,
            on_hang=self._end_hung,
        )
        self._giving_up: asyncio.Task[None] | None = None
        self._poll_s = settings.poll_s
        self._on_room = on_room
        self._on_more = on_more
        self.slots = slots
        self._observers = observers
        self.ended = 0  # stage runs that were in flight here, whatever their end
        self._loop = asyncio.get_running_loop()
        self._claiming: asyncio.Task[None] | None = None
        self._in_flight: dict[int, _InFlight] = {}
        self._fenced = False
        self._room_announced = False  # ``_use_room`` is about to run
        self._poll_timer = self._loop.call_soon(self._poll)

    @property
    def in_flight(self) -> int:
        """The number of stage runs that are claimed, and whose end is not recorded yet."""
        return len(self._in_flight)

    @property
    def engine_is_down(self) -> bool:
        """Whether an attempt ended here because the engine died or hangs, so that the worker ends."""
        return self._ends.engine_is_down

    def claims_in_flight(self) -> list[tuple[Claim, float]]:
        """Return the claims in flight, each with the time of the claim in seconds since 1970. For any thread."""
        return [(run.claim, run.observed.times.claimed_at) for run in tuple(self._in_flight.values())]

    def _steps_of(self, stage_run_id: int) -> StepSeconds | None:
        """Return how long the steps of a stage run in flight have taken until now. For any thread."""
        run = self._in_flight.get(stage_run_id)
        return None if run is None else run.observed.times.steps()

    # Claim.

    def ring(self, priority: Priority = Priority.NORMAL) -> None:
        """Claim soon, because stage runs may wait; HIGH: those of high jobs. For any thread."""
        self._loop.call_soon_threadsafe(self._ring, priority)

    def _ring(self, priority: Priority) -> None:
        self.slots.ring(priority)
        self._claim_next()

    def set_paused(self, is_paused: bool) -> None:
        """Claim nothing while the stage is paused, and claim at once when it is resumed. Stage runs in flight go on."""
        if self.slots.is_paused != is_paused:
            logger.warning("stage %s is %s", self._stage.name, "paused" if is_paused else "resumed")
            self.slots.pause(is_paused)
            self._announce_room()

    def _poll(self) -> None:
        if not self.slots.is_closed:
            self._poll_timer = self._loop.call_later(self._poll_s * random.uniform(0.9, 1.1), self._poll)  # noqa: S311
            self.slots.ring_for_all()
            self._claim_next()

    def _claim_next(self) -> None:
        """Claim for all free slots, if stage runs may wait that may take them and no claim is under way."""
        if self._claiming is None and any(wanted := self.slots.begin_claim()):
            self._claiming = self._loop.create_task(self._claim(*wanted))

    async def _claim(self, at_most: int, of_high: int) -> None:
        """Claim up to ``at_most`` stage runs and ``of_high`` further ones of high jobs, and start them."""
        claims = Claims(())
        try:
            claims = await self._ledger.claim(at_most, of_high=of_high, is_idle=not self._in_flight)
        except Fenced:
            pass
        except StageError as error:
            logger.error("nothing was claimed: %s", error)  # what it may have been granted, the next claim returns
        finally:
            self._claiming = None
            for_others = self.slots.end_claim(claims)
        for claim in claims.claims:
            self._start(claim)
        for priority in for_others:
            self._on_more(priority)
        self._announce_room()

    def _start(self, claim: Claim) -> None:
        run = _InFlight(claim, ObservedRun(claim, self._observers))
        self._watch.begin(claim.stage_run_id)
        self._in_flight[claim.stage_run_id] = run
        run.task = self._loop.create_task(self._run_one(run), name=_task_name(claim))

    # Load → run → store → complete.

    async def _run_one(self, run: _InFlight) -> None:
        """Run one claimed stage run; record its end, whatever end that is, and free its slot."""
        claim, observed = run.claim, run.observed
        CURRENT_RUN.set(claim.stage_run_id)
        worker_id = self._ledger.worker.worker_id
        trace = None if claim.traceparent is None else trace_of(claim.traceparent)
        current_run.set(RunNames(claim.job_id, claim.stage_run_id, claim.stage, claim.attempt, worker_id, trace))
        run.started = True
        snapshots = self._snapshots.of(claim)
        result = LOST
        try:
            if not self._may_run(run):
                result = await self._ends.hand_back(claim)
                return
            over = partial(self._watch.expect_end, claim.stage_run_id)
            async with TimeLimit(self._stage.config, on_over=over) as limit:
                stage_input = await self._handoff.load(claim)
                await snapshots.load()
                observed.loaded()
                output = await self._llm.generate(stage_input, partial(self._report, run, limit), snapshots)
                observed.ran()
                device_s = self._llm.device_time.of(claim.stage_run_id)
                completion = await self._handoff.store(claim, stage_input, output, device_s, observed.times.steps)
                completion = snapshots.warn(completion)
                observed.stored(completion)
            result = await self._complete(run, completion)
        except Fenced:
            logger.warning("stage run %d: abandoned", claim.stage_run_id)
        except BaseException as error:  # noqa: BLE001 — whatever the model's code raises ends this stage run alone
            result = await self._end(run, error)
        finally:
            snapshots.end()
            self._forget(run, result)

    async def _complete(self, run: _InFlight, completion: Completion) -> RunResult:
        """Record a completion, unless the stage run's end is recorded already; delete the objects of one that lost."""
        claim, result = run.claim, LOST
        if not run.hangs:
            self._begin_report(run)
            result = result_of(await self._ledger.report(completion), COMPLETED)
            if result.kind == "completed":
                return result
            logger.info("stage run %d: attempt %d had lost already", claim.stage_run_id, claim.attempt)
        await self._handoff.forget(completion)
        return result

    async def _end(self, run: _InFlight, error: BaseException) -> RunResult:
        """Record that a stage run was stopped or failed, unless that is recorded already."""
        was_stopped = isinstance(error, asyncio.CancelledError) and (run.stopping or run.hangs)
        if run.hangs or (was_stopped and self._fenced):
            return LOST
        self._begin_report(run)
        return await (self._ends.cancelled(run.claim) if was_stopped else self._ends.fail(run.claim, error))

    def _begin_report(self, run: _InFlight) -> None:
        run.reporting = True
        self._watch.end(run.claim.stage_run_id)

    def _may_run(self, run: _InFlight) -> bool:
        ours = run.claim.stage == self._stage.name and run.claim.pipeline == self._stage.pipeline.name
        if not ours:
            logger.error("%s.%s was claimed by %s", run.claim.pipeline, run.claim.stage, self._stage.name)
        return ours and not self.slots.is_closed and not run.stopping

    def _report(self, run: _InFlight, limit: TimeLimit, progress: Progress) -> None:
        limit.note(progress)
        self._watch.note(run.claim.stage_run_id, waits=progress.waiting)
        run.observed.progressed(progress)

    def _forget(self, run: _InFlight, result: RunResult) -> None:
        del self._in_flight[run.claim.stage_run_id]
        self._llm.device_time.forget(run.claim.stage_run_id)
        self.slots.free(run.claim)
        self.ended += 1
        self._watch.end(run.claim.stage_run_id)
        if not run.hangs:
            run.observed.ended(result)
        self._announce_room()

    # Stop.

    def stop_runs(self, stage_run_ids: Iterable[int]) -> None:
        """Cancel these stage runs, whose jobs are to end; skip one not in flight, or with its end being recorded."""
        for stage_run_id in stage_run_ids:
            run = self._in_flight.get(stage_run_id)
            if run is not None:
                self._stop(run)

    def abandon(self) -> None:
        """Cancel all stage runs in flight and claim none any more, because this worker is fenced.

        It reports none of their ends, because other workers may hold them, or the ledger has them queued again.
        """
        self._fenced = True
        self._take_no_more()
        for run in list(self._in_flight.values()):
            run.reporting = False
            self._stop(run)

    async def drain(self, within_s: float, hurry: asyncio.Event) -> None:
        """Claim no more, wait for the stage runs in flight, and release those that have not ended.

        The wait is over after ``within_s`` seconds, or when ``hurry`` is set. This executor cannot be used afterwards.
        """
        self._take_no_more()
        if self._claiming is not None:
            await asyncio.wait({self._claiming}, timeout=_LAST_WORDS_S)
        hurried = self._loop.create_task(hurry.wait())
        ended: asyncio.Future[Any] = asyncio.gather(*self._tasks(), return_exceptions=True)
        await asyncio.wait({hurried, ended}, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        for run in list(self._in_flight.values()):
            self._stop(run)
        if self._giving_up is not None:
            await asyncio.wait({self._giving_up}, timeout=_LAST_WORDS_S)
        if tasks := self._tasks():
            await asyncio.wait(tasks, timeout=_LAST_WORDS_S)
        await self._snapshots.close()
        await self._handoff.close()

    def _take_no_more(self) -> None:
        self.slots.close()
        self._poll_timer.cancel()

    def _tasks(self) -> set[asyncio.Task[None]]:
        return {run.task for run in self._in_flight.values() if not run.hangs}

    def _stop(self, run: _InFlight) -> None:
        if run.reporting or run.stopping:
            return
        run.stopping = True
        if run.started:
            run.task.cancel()
        if not self._fenced:
            self._watch.expect_end(run.claim.stage_run_id)

    def give_up(self, reason: str, task: str | None) -> None:
        """Report the ends of all that runs, because the event loop stands still in a task of this name.

        For another thread. The stage run of that task is to blame, and the others are handed back. If it is none's,
        all are to blame, because a job that blocks its workers must not come back for ever.
        """
        claims = [run.claim for run in self._leave_all()]
        blamed = [claim.stage_run_id for claim in claims if _task_name(claim) == task]
        self._ends.give_up(reason, claims, blamed or [claim.stage_run_id for claim in claims])

    def _end_hung(self, hang: Hang) -> None:
        """Record the end of all that runs, because this worker's engine or one of its stage runs hangs."""
        self._giving_up = self._loop.create_task(self._record_hung(hang, self._leave_all()))

    async def _record_hung(self, hang: Hang, runs: Sequence[_InFlight]) -> None:
        results = await self._ends.hung(hang, [run.claim for run in runs])
        for run, result in zip(runs, results, strict=True):
            run.observed.ended(result)

    def _leave_all(self) -> Sequence[_InFlight]:
        """Return the stage runs whose ends are to be recorded now, whatever becomes of them here. For any thread."""
        runs = [run for run in tuple(self._in_flight.values()) if not run.reporting]
        for run in runs:
            run.reporting = run.hangs = True
        return runs

    def _announce_room(self) -> None:
        """Use free slots in the loop's next turn: all that are free by then, in one claim."""
        if not self._room_announced:
            self._room_announced = True
            self._loop.call_soon(self._use_room)

    def _use_room(self) -> None:
        self._room_announced = False
        self._claim_next()
        self._on_room()


def _task_name(claim: Claim) -> str:
    return f"stage run {claim.stage_run_id}"
