"""``RunEnds``: how the ledger learns of the ends of stage runs that did not complete."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from omni_jobs.errors import EngineDead, Fenced, ModelError, OmniJobsError, OutOfMemory, StageError, TimeLimitExceeded
from omni_jobs.jobs import Claim, Failure, Outcome, Release, StepSeconds
from workers.execution.hang_watch import Hang
from workers.execution.ledger import Ledger
from workers.execution.observers.run_observer import LOST, RELEASED, RunResult
from workers.execution.stage_llm import StageLLM
from workers.runners.contained import escaped

logger = logging.getLogger(__name__)


def result_of(outcome: Outcome, result: RunResult) -> RunResult:
    """Return the result of a report with this outcome: ``result``, LOST if it is not ``won``; both with the state."""
    kind, error, _ = result if outcome.won else LOST
    return RunResult(kind, error, outcome.state)


class RunEnds:
    """Records for one executor that stage runs failed, or are handed back. For its event loop, but for ``give_up``."""

    def __init__(
        self,
        llm: StageLLM,
        ledger: Ledger,
        *,
        steps_of: Callable[[int], StepSeconds | None],
        take_no_more: Callable[[], None],
        on_broken: Callable[[str], None],
    ) -> None:
        """``steps_of`` says how long the steps of a stage run have taken until now, by its id.

        ``take_no_more`` is called before the end of an engine is recorded, ``on_broken`` with the reason after.
        """
        self._llm = llm
        self._stage = llm.stage.name
        self._ledger = ledger
        self._worker_id = ledger.worker.worker_id
        self._steps_of = steps_of
        self._take_no_more = take_no_more
        self._on_broken = on_broken
        self.engine_is_down = False  # it died or hangs, as an end says that was recorded here

    async def cancelled(self, claim: Claim) -> RunResult:
        """Record that a stage run was stopped as its executor asked, and return the result."""
        if self._llm.runner.healthy:
            return await self.hand_back(claim)
        # It may have killed the engine. Handed back it would do so in one worker after the other.
        return await self.fail(claim, EngineDead())

    async def hung(self, hang: Hang, claims: Sequence[Claim]) -> Sequence[RunResult]:
        """Record the ends of all claims that an engine that hangs has in it, end the worker, and return the results."""
        logger.critical("%s", hang.reason)
        self.engine_is_down = True
        self._take_no_more()
        answers = await asyncio.gather(*self.give_up(hang.reason, claims, hang.blamed), return_exceptions=True)
        self._on_broken(hang.reason)
        failed = RunResult("failed", self._hang_error(hang.reason))
        results = [failed if claim.stage_run_id in hang.blamed else RELEASED for claim in claims]
        if not answers:
            return [LOST] * len(claims)
        return [
            result_of(answer, result) if isinstance(answer, Outcome) else LOST
            for result, answer in zip(results, answers, strict=True)
        ]

    def give_up(
        self, reason: str, claims: Sequence[Claim], blamed: Collection[int]
    ) -> Sequence[asyncio.Future[Outcome]]:
        """Report the ends of all claims to the ledger, and return its answers to come, if it gives any. For any thread.

        The stage runs to blame have failed. The others are handed back, so that nothing is counted against them.
        """
        attempts = [(claim.stage_run_id, claim.attempt) for claim in claims]
        failed = [attempt for attempt in attempts if attempt[0] in blamed]
        error = self._hang_error(reason)
        return self._ledger.give_up(
            [
                Failure(*attempt, self._worker_id, error, *self._spent(attempt[0]))
                if attempt in failed
                else Release(*attempt, self._worker_id, *self._spent(attempt[0]))
                for attempt in attempts
            ]
        )

    def _hang_error(self, reason: str) -> EngineDead:
        return EngineDead(reason, stage=self._stage)

    async def fail(self, claim: Claim, exception: BaseException) -> RunResult:
        """Record the error of a stage run, and return the result. The error of an engine ends the worker."""
        error = self._as_error(claim, exception)
        engine_dead = isinstance(error, EngineDead) or not self._llm.runner.healthy
        if engine_dead:
            self.engine_is_down = True
            # Before the report, because the next attempt may be claimed at once.
            self._take_no_more()
        spent = self._spent(claim.stage_run_id)
        failure = Failure(claim.stage_run_id, claim.attempt, self._worker_id, error, *spent)
        result = await self._record(failure, RunResult("failed", error))
        if engine_dead:
            self._on_broken("the engine is gone")
        return result

    async def hand_back(self, claim: Claim) -> RunResult:
        """Queue a stage run again, or end it if its job is to stop, and return the result. Nothing is counted."""
        spent = self._spent(claim.stage_run_id)
        return await self._record(Release(claim.stage_run_id, claim.attempt, self._worker_id, *spent), RELEASED)

    def _spent(self, stage_run_id: int) -> tuple[float, StepSeconds | None]:
        """Return what an attempt has used until now: seconds on devices, and those of its steps."""
        return self._llm.device_time.of(stage_run_id), self._steps_of(stage_run_id)

    async def _record(self, report: Failure | Release, result: RunResult) -> RunResult:
        """Report an end, and return the result, LOST if nothing is recorded."""
        try:
            return result_of(await self._ledger.report(report), result)
        except Fenced:
            return LOST
        except StageError as refused:
            # A stage run whose end cannot be recorded stays this worker's as long as the worker lives.
            self._on_broken(f"the end of stage run {report.stage_run_id} cannot be recorded: {refused}")
            return LOST

    def _as_error(self, claim: Claim, exception: BaseException) -> OmniJobsError:
        """Return the error to record for an exception that ended a stage run.

        An OmniJobsError stays the same. Memory may be there on another attempt. Everything else is the model's
        code meeting an input it was not written for: a final error, with a traceback in the log.
        """
        if isinstance(exception, TimeLimitExceeded) and not self._llm.runner.healthy:
            error: OmniJobsError = EngineDead()
        elif isinstance(exception, OmniJobsError):
            error = exception
        elif isinstance(exception, MemoryError):
            error = OutOfMemory()
        else:
            logger.error("stage run %d of %s", claim.stage_run_id, claim.job_id, exc_info=exception)
            is_usual = isinstance(exception, Exception)
            error = ModelError(f"{type(exception).__name__}: {exception}") if is_usual else escaped(exception)
        error.stage = error.stage or self._stage
        return error
