"""The ledger on a real database that sometimes does not answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest
from sqlalchemy import delete

from omni_jobs.db import Database
from omni_jobs.errors import DatabaseUnavailable, Fenced, ModelError, StageError
from omni_jobs.jobs import Claim, Completion, Failure, Hint, Jobs, NewJob, NewStage, NewWorker, Outcome, new_job_id
from omni_jobs.models import WorkerRow
from omni_jobs.settings import Settings
from omni_jobs.states import JobState, StageRunState
from workers.ledger import Ledger


class FlakyJobs(Jobs):
    """Real jobs; loses the next ``outages`` calls, every other time after the commit."""

    outages = 0
    transactions = 0
    refuses: int | None = None  # a stage run whose completion breaks the transaction

    def _pass(self) -> None:
        self.transactions += 1
        if self.outages:
            self.outages -= 1
            raise DatabaseUnavailable

    def claim(self, worker_id: str, hints: Sequence[tuple[int, int]]) -> list[Claim]:
        if self.outages % 2:
            self._pass()
        found = super().claim(worker_id, hints)
        self._pass()
        return found

    def complete(self, completions: Sequence[Completion]) -> list[Outcome]:
        if any(completion.stage_run_id == self.refuses for completion in completions):
            raise ValueError("not for this database")
        found = super().complete(completions)
        self._pass()
        return found


class Hints:
    """Stands where the relay to the broker is."""

    def __init__(self) -> None:
        self.sent: list[Hint] = []

    def send(self, hints: Sequence[Hint]) -> None:
        self.sent += hints


class Bench:
    """A ledger, and jobs of one stage to claim through it."""

    def __init__(self, database: Database, settings: Settings | None = None) -> None:
        self.database = database
        self.jobs = FlakyJobs(database)
        self.hints = Hints()
        self.fenced: list[Fenced] = []
        self.unwanted: list[int] = []
        self.worker = NewWorker(f"worker-{uuid4().hex}", "slot", "echo", "first", "host", 1, 8, "1", "d")
        self.ledger = Ledger(
            self.jobs,
            self.worker,
            self.hints,  # type: ignore[arg-type]
            settings or Settings(heartbeat_s=0.1, lease_s=5),
            on_cancel=self.unwanted.extend,
            on_fenced=self.fenced.append,
        )

    def submit(self, count: int = 1) -> list[tuple[int, int]]:
        """New jobs; their hints."""
        submitted = [
            self.jobs.submit(
                NewJob(
                    job_id=new_job_id(),
                    pipeline="echo",
                    pipeline_version="1",
                    pipeline_digest="d",
                    request={},
                    modalities=["text"],
                    stages=[NewStage(name="first", inputs=(), queue="echo.first")],
                    seed=0,
                    request_digest="r",
                )
            )
            for _ in range(count)
        ]
        return [(hint.stage_run_id, hint.attempt) for one in submitted for hint in one.hints]

    def done(self, claim: Claim) -> Completion:
        return Completion(claim.stage_run_id, claim.attempt, self.worker.worker_id, result={"text": "x"})


@pytest.fixture
async def bench(database: Database) -> AsyncIterator[Bench]:
    bench = Bench(database)
    await asyncio.to_thread(bench.ledger.start, asyncio.get_running_loop(), lambda: False)
    yield bench
    await asyncio.to_thread(bench.ledger.close)


async def until(condition: object, within_s: float = 5.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_claims_and_completions_share_transactions(bench: Bench) -> None:
    hints = bench.submit(40)
    claims = await asyncio.gather(*(bench.ledger.claim([hint]) for hint in hints))
    assert [claim.stage_run_id for (claim,) in claims] == [stage_run_id for stage_run_id, _ in hints]
    outcomes = await asyncio.gather(*(bench.ledger.complete(bench.done(claim)) for (claim,) in claims))
    assert all(outcome.won and outcome.job_state is JobState.COMPLETED for outcome in outcomes)
    assert bench.jobs.transactions < 20


async def test_nothing_is_lost_while_the_database_is_away(bench: Bench) -> None:
    bench.jobs.outages = 3
    (claim,) = await bench.ledger.claim(bench.submit())
    assert claim.attempt == 1
    bench.jobs.outages = 2  # the completion is committed, its answer lost
    assert (await bench.ledger.complete(bench.done(claim))).won


async def test_one_bad_completion_does_not_fail_its_neighbours(bench: Bench) -> None:
    claims = await bench.ledger.claim(bench.submit(3))
    bench.jobs.refuses = claims[1].stage_run_id
    results = await asyncio.gather(
        *(bench.ledger.complete(bench.done(claim)) for claim in claims), return_exceptions=True
    )
    assert [isinstance(result, Outcome) and result.won for result in results] == [True, False, True]
    assert isinstance(results[1], StageError)
    failure = Failure(claims[1].stage_run_id, 1, bench.worker.worker_id, ModelError("no", stage="first"))
    assert (await bench.ledger.fail(failure)).job_state is JobState.FAILED


async def test_the_heartbeat_names_what_is_no_longer_wanted(bench: Bench) -> None:
    (claim,) = await bench.ledger.claim(bench.submit())
    bench.jobs.cancel(claim.job_id)
    await until(lambda: bench.unwanted)
    assert set(bench.unwanted) == {claim.stage_run_id}
    await bench.ledger.release(claim.stage_run_id, claim.attempt)
    assert bench.jobs.get(claim.job_id).status is JobState.CANCELLED


async def test_a_cancel_does_not_wait_for_the_heartbeat(database: Database) -> None:
    bench = Bench(database, Settings(heartbeat_s=60, lease_s=120, cancel_check_s=0.1))
    await asyncio.to_thread(bench.ledger.start, asyncio.get_running_loop(), lambda: False)
    try:
        (claim,) = await bench.ledger.claim(bench.submit())
        bench.jobs.cancel(claim.job_id)
        await until(lambda: bench.unwanted)
        assert set(bench.unwanted) == {claim.stage_run_id}
    finally:
        await asyncio.to_thread(bench.ledger.close)


async def test_a_busy_event_loop_does_not_lose_the_lease(bench: Bench) -> None:
    before = bench.jobs.workers()[0].renewed_at
    threading.Event().wait(0.5)  # the loop stands still; the ledger's thread does not
    assert bench.jobs.workers()[0].renewed_at > before


async def test_fenced_is_final(bench: Bench) -> None:
    (claim,) = await bench.ledger.claim(bench.submit())
    with bench.database.begin() as transaction:
        transaction.execute(delete(WorkerRow))
    await until(lambda: bench.fenced)
    with pytest.raises(Fenced):
        await bench.ledger.complete(bench.done(claim))
    assert bench.jobs.get(claim.job_id).stages[0].status is StageRunState.RUNNING


async def test_close_retires_and_hands_back(bench: Bench) -> None:
    (claim,) = await bench.ledger.claim(bench.submit())
    await asyncio.to_thread(bench.ledger.close)
    assert bench.jobs.workers() == []
    assert bench.jobs.get(claim.job_id).stages[0].status is StageRunState.QUEUED
    assert bench.hints.sent == [Hint(claim.stage_run_id, claim.attempt, "echo.first")]


async def test_a_newcomer_clears_its_slot_before_it_has_a_lease(bench: Bench) -> None:
    (claim,) = await bench.ledger.claim(bench.submit())
    newcomer = Bench(bench.database)
    await asyncio.to_thread(newcomer.ledger.clear_slot, lambda: False)
    assert newcomer.hints.sent == [Hint(claim.stage_run_id, claim.attempt, "echo.first")]
    assert newcomer.jobs.workers() == []
    await until(lambda: bench.fenced)
