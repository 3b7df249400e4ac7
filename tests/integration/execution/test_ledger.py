"""The ledger on a real database that sometimes does not answer."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import delete, select, text, update

from omni_jobs.database.database import Database
from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import DatabaseUnavailable, Fenced, ModelError, SlotTaken, StageError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claim,
    Claims,
    Completion,
    Failure,
    Jobs,
    NewJob,
    NewSnapshot,
    NewStage,
    NewWorker,
    Outcome,
    ProgressReport,
    Release,
    Renewal,
    Report,
    SlotHolder,
    TextPiece,
    Wishes,
    new_job_id,
)
from omni_jobs.metrics.stage_stats import StageStats, WorkerStats
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.settings import Settings
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef, snapshot_key
from tests.integration.job_steps import (
    failures,
    submit_one,
)
from workers.execution import incarnation
from workers.execution.ledger import Ledger
from workers.execution.observers.ledger_observer import LedgerObserver

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


class FlakyJobs(Jobs):
    """Real jobs; loses the next ``outages`` calls, every other time after the commit."""

    outages = 0
    transactions = 0
    refuses: int | None = None  # a stage run whose completion breaks the transaction
    shared = 0  # transactions of what ended and what came in its place
    bug: str | None = None  # the method that meets one
    away = False  # the database, for renewals, claims and ends

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self.counts: list[Mapping[str, Any] | None] = []  # that renewals brought

    def _pass(self) -> None:
        self.transactions += 1
        if self.outages:
            self.outages -= 1
            raise DatabaseUnavailable

    def _reach(self) -> None:
        if self.away:
            raise DatabaseUnavailable

    def renew(
        self, worker_id: str, lease_s: float, run_s: float | None = None, stats: Mapping[str, Any] | None = None
    ) -> Renewal:
        if self.bug == "renew":
            raise RuntimeError("a bug")
        self._reach()
        renewal = super().renew(worker_id, lease_s, run_s, stats)
        self.counts.append(stats)
        return renewal

    def report_progress(self, reports: Sequence[ProgressReport], pieces: Sequence[TextPiece] = ()) -> None:
        if self.bug == "report_progress":
            raise RuntimeError("a bug")
        super().report_progress(reports, pieces)

    def wishes(self, worker_id: str) -> Wishes:
        if self.bug == "wishes":
            raise RuntimeError("a bug")
        return super().wishes(worker_id)

    def claim(self, worker_id: str, at_most: int, *, reports: Sequence[Report] = (), **options: Any) -> Claims:
        self._check(reports)
        self._reach()
        self.shared += bool(reports)
        if self.outages % 2:
            self._pass()
        found = super().claim(worker_id, at_most, reports=reports, **options)
        self._pass()
        return found

    def report(self, reports: Sequence[Report]) -> Sequence[Outcome]:
        self._check(reports)
        found = super().report(reports)
        self._pass()
        return found

    def _check(self, reports: Sequence[Report]) -> None:
        if any(isinstance(each, Completion) and each.stage_run_id == self.refuses for each in reports):
            raise ValueError("not for this database")


class Heard(LedgerObserver):
    """Notes what it is told, and fails then."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.renewals = 0

    def claimed(self, claims: Sequence[Claim]) -> None:
        self._note("claimed", [claim.stage_run_id for claim in claims])

    def renewed(self) -> None:
        self.renewals += 1

    def ended(self, reports: Sequence[Report], outcomes: Sequence[Outcome]) -> None:
        self._note("ended", [report.stage_run_id for report in reports], [outcome.won for outcome in outcomes])

    def _note(self, *told: Any) -> None:
        self.told.append(told)
        raise RuntimeError("a bug of an observer")


class Doorbells:
    """Stands where the relay to the broker is."""

    breaks = False  # the next time

    def __init__(self) -> None:
        self.rung: list[str] = []

    def ring(self, queues: Collection[str]) -> None:
        if self.breaks:
            self.breaks = False
            raise RuntimeError("a bug of the relay")
        self.rung += queues


class Bench:
    """A ledger, and jobs of one stage to claim through it."""

    def __init__(self, database: Database, settings: Settings | None = None, worker: NewWorker | None = None) -> None:
        self.database = database
        self.jobs = FlakyJobs(database)
        self.doorbells = Doorbells()
        self.heard = Heard()
        self.fenced: list[Fenced] = []
        self.unwanted: list[int] = []
        self.pauses: list[bool] = []
        self.stats: Mapping[str, Any] | None = None  # what the worker has counted
        self.worker = worker or NewWorker(
            f"worker-{uuid4().hex}", "slot", StageId(PipelineId("echo", "d"), "first"), "host", 1, 8, "1"
        )
        self.ledger = Ledger(
            self.jobs,
            self.worker,
            self.doorbells,  # type: ignore[arg-type]
            settings or Settings(heartbeat_s=0.1, lease_s=5),
            keep_trying=lambda: False,
            on_cancel=self.unwanted.extend,
            on_pause=self.pauses.append,
            on_fenced=self.fenced.append,
            observers=[self.heard],
            stats=lambda: self.stats,
        )

    async def start(self) -> None:
        await asyncio.to_thread(self.ledger.take_slot, asyncio.get_running_loop())
        await asyncio.to_thread(self.ledger.serve)

    def submit(self, count: int = 1) -> list[str]:
        """Submit jobs, and return their ids."""
        ids = [new_job_id() for _ in range(count)]
        for job_id in ids:
            submit_one(
                self.jobs,
                NewJob(
                    job_id=job_id,
                    pipeline=PipelineId("echo", "d"),
                    pipeline_version="1",
                    request={},
                    modalities=["text"],
                    stages=[NewStage(name="first", inputs=(), queue="echo.first")],
                    seed=0,
                    request_digest="r",
                ),
            )
        return ids

    async def claim(self, at_most: int = 8, *, is_idle: bool = True) -> list[Claim]:
        return list((await self.ledger.claim(at_most, is_idle=is_idle)).claims)

    async def claim_new(self, count: int = 1) -> list[Claim]:
        """Submit jobs and claim them."""
        self.submit(count)
        return await self.claim(count)

    async def hand_back(self, claim: Claim) -> Outcome:
        return await self.ledger.report(Release(claim.stage_run_id, claim.attempt, self.worker.worker_id))

    def done(self, claim: Claim) -> Completion:
        return Completion(claim.stage_run_id, claim.attempt, self.worker.worker_id, result={"text": "x"})


@pytest.fixture
async def bench(database: Database) -> AsyncIterator[Bench]:
    bench = Bench(database)
    await bench.start()
    yield bench
    await asyncio.to_thread(bench.ledger.close)


async def until(condition: object, within_s: float = 30.0) -> None:
    assert callable(condition)
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def test_completions_and_the_claim_in_their_place_share_a_transaction(bench: Bench) -> None:
    ids = bench.submit(60)
    claims = await bench.claim(30)
    assert [claim.job_id for claim in claims] == ids[:30]
    more, *outcomes = await asyncio.gather(bench.claim(30), *(bench.ledger.report(bench.done(each)) for each in claims))
    assert [claim.job_id for claim in more] == ids[30:]
    assert all(outcome.won for outcome in outcomes)
    assert {bench.jobs.get(job_id).status for job_id in ids[:30]} == {JobState.COMPLETED}
    assert (bench.jobs.shared, bench.jobs.transactions) == (1, 2)


async def test_renewals_write_counts_that_are_new_and_the_end_writes_the_last(database: Database) -> None:
    def counted(ends: int) -> Mapping[str, Any]:
        return WorkerStats(StageStats(ended={"completed": ends})).to_json()

    bench = Bench(database)
    await bench.start()
    bench.stats = counted(2)
    await until(lambda: [worker.ended for worker in bench.jobs.workers()] == [{"completed": 2}])
    renewals = len(bench.jobs.counts)
    await until(lambda: len(bench.jobs.counts) > renewals + 2)
    assert [each for each in bench.jobs.counts if each is not None] == [counted(2)]
    bench.jobs.away = True
    bench.stats = counted(3)
    heard = bench.heard.renewals
    bench.jobs.away = False
    await until(lambda: [worker.ended for worker in bench.jobs.workers()] == [{"completed": 3}])
    assert bench.heard.renewals > heard
    bench.stats = counted(4)
    await asyncio.to_thread(bench.ledger.close)
    with database.begin() as tx:
        [final] = tx.execute(text("SELECT final FROM sampled_workers")).scalars()
    assert json.loads(final) == counted(4)


async def test_snapshots_of_the_attempts_that_run_are_recorded(bench: Bench) -> None:
    """Those that come together in one transaction, with an end of one of them."""
    one, two = await bench.claim_new(2)
    before = bench.jobs.transactions
    recorded, again, outcome, useless = await asyncio.gather(
        bench.ledger.record_snapshot(snapshot(bench, one, 1)),
        bench.ledger.record_snapshot(snapshot(bench, one, 2)),
        bench.ledger.report(bench.done(two)),
        bench.ledger.record_snapshot(snapshot(bench, two, 1)),
    )
    assert (recorded, again, outcome.won, useless) == (True, True, True, True)
    assert bench.jobs.transactions == before + 1  # of the completion; snapshots are counted by nobody
    assert [each.what for each in bench.jobs.garbage()] == [snapshot(bench, two, 1).ref.key], "its end lets go of it"
    await bench.hand_back(one)
    [next_one] = await bench.claim()
    assert next_one.snapshot is not None
    assert (next_one.snapshot.attempt, next_one.snapshot.steps_done) == (1, 2)


@pytest.mark.parametrize("end", ["release", "fail"])
async def test_a_snapshot_comes_before_the_end_after_which_the_next_attempt_wants_it(bench: Bench, end: str) -> None:
    [one] = await bench.claim_new(1)
    failure = Failure(one.stage_run_id, 1, bench.worker.worker_id, Fenced())
    ended = bench.ledger.report(failure) if end == "fail" else bench.hand_back(one)
    _, recorded = await asyncio.gather(ended, bench.ledger.record_snapshot(snapshot(bench, one, 1)))
    assert recorded
    [again] = await bench.claim()
    assert again.snapshot is not None
    assert again.snapshot.attempt == 1


def snapshot(bench: Bench, claim: Claim, number: int) -> NewSnapshot:
    ref = ObjectRef(
        key=snapshot_key(claim.job_id, claim.stage, claim.attempt, number), size=1, digest="xxh3:" + "0" * 32
    )
    return NewSnapshot(claim.stage_run_id, claim.attempt, bench.worker.worker_id, ref, steps_done=number)


async def test_a_claim_says_whether_more_may_wait(bench: Bench) -> None:
    bench.submit(3)
    assert (await bench.ledger.claim(2, is_idle=True)).more
    assert not (await bench.ledger.claim(2, is_idle=False)).more


async def test_stage_runs_that_were_granted_in_a_lost_answer_are_returned_and_no_others(bench: Bench) -> None:
    ids = bench.submit(9)
    held = await bench.claim(2)
    bench.jobs.outages = 2  # the claim is committed, its answer lost, and the next try does not get through
    claims = await bench.ledger.claim(3, is_idle=False)
    assert [claim.job_id for claim in claims.claims] == ids[2:5]
    assert claims.more
    assert {claim.attempt for claim in claims.claims} == {1}
    [worker] = bench.jobs.workers()
    assert worker.running == 5, "the repeated call has claimed nothing more"
    assert [claim.job_id for claim in await bench.claim(8, is_idle=False)] == ids[5:]
    for claim in (*held, *claims.claims):
        assert (await bench.ledger.report(bench.done(claim))).won


async def test_a_claim_that_did_not_get_through_is_made_again(bench: Bench) -> None:
    ids = bench.submit(2)
    bench.jobs.outages = 1  # before the commit
    assert [claim.job_id for claim in await bench.claim(1)] == ids[:1]
    assert [claim.job_id for claim in await bench.claim(1, is_idle=False)] == ids[1:]


async def test_a_claim_that_the_database_refuses_is_granted_with_the_next(bench: Bench) -> None:
    """Nobody knows whether it was committed: here it was."""
    ids = bench.submit(3)
    claim = bench.jobs.claim

    def broken(worker_id: str, at_most: int, **options: Any) -> Claims:
        claim(worker_id, at_most, **options)
        raise ValueError("an answer that nobody can read")

    bench.jobs.claim = broken  # type: ignore[method-assign]
    with pytest.raises(StageError, match="refused"):
        await bench.claim(2)
    bench.jobs.claim = claim  # type: ignore[method-assign]
    assert [claim.job_id for claim in await bench.claim(8)] == ids[:2]
    assert [claim.job_id for claim in await bench.claim(8, is_idle=False)] == ids[2:]


async def test_what_was_claimed_in_the_place_of_an_end_that_could_not_be_noted_is_granted_with_the_next(
    bench: Bench,
) -> None:
    """The transaction is committed, and its answer gets lost in this process."""
    [ended] = await bench.claim_new()
    ids = bench.submit(3)
    bench.doorbells.breaks = True
    outcome, granted = await asyncio.gather(bench.ledger.report(bench.done(ended)), bench.claim(2, is_idle=False))
    assert outcome.won
    assert [claim.job_id for claim in granted] == ids[:2]
    [worker] = bench.jobs.workers()
    assert worker.running == 2
    assert (bench.jobs.shared, bench.doorbells.breaks) == (1, False)


async def test_what_ended_is_recorded_though_the_claim_in_its_place_finds_no_lease(database: Database) -> None:
    bench = Bench(database, Settings(heartbeat_s=60, lease_s=120))
    await bench.start()
    [claim] = await bench.claim_new()
    with database.begin() as transaction:
        transaction.execute(delete(WorkerRow))
    outcome, claims = await asyncio.gather(
        bench.ledger.report(bench.done(claim)), bench.ledger.claim(8, is_idle=True), return_exceptions=True
    )
    assert isinstance(outcome, Outcome)
    assert outcome.won
    assert isinstance(claims, Fenced)
    assert bench.jobs.get(claim.job_id).status is JobState.COMPLETED
    await asyncio.to_thread(bench.ledger.close)


async def test_nothing_is_lost_while_the_database_is_away(bench: Bench) -> None:
    bench.jobs.outages = 3
    [claim] = await bench.claim_new()
    assert claim.attempt == 1
    bench.jobs.outages = 2  # the completion is committed, its answer lost
    assert (await bench.ledger.report(bench.done(claim))).won


async def test_an_outage_that_outlasts_the_lease_takes_nothing_from_a_worker(database: Database) -> None:
    """What comes back first is the lease: a claim or an end of those that waited does not get there before it."""
    bench = Bench(database, Settings(heartbeat_s=60, lease_s=120))  # no beat falls between the outage and its end
    await bench.start()
    try:
        ended, running = await bench.claim_new(2)
        bench.submit()
        bench.jobs.away = True
        waiting = asyncio.gather(bench.ledger.report(bench.done(ended)), bench.ledger.claim(8, is_idle=False))
        await until(lambda: bench.ledger._pause_s)
        with database.begin() as tx:
            tx.execute(update(WorkerRow).values(lease_until=0))
        bench.jobs.away = False
        async with asyncio.timeout(30):
            outcome, claims = await waiting
        assert outcome.won
        assert len(claims.claims) == 1
        assert (await bench.ledger.report(bench.done(running))).won
        assert bench.fenced == []
        assert bench.jobs.rescue().freed == 0
    finally:
        await asyncio.to_thread(bench.ledger.close)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_nothing_is_claimed_and_no_end_counts_while_the_file_is_away(bench: Bench, tmp_path: Path) -> None:
    [running] = await bench.claim_new()
    bench.submit()
    for name in ("", "-wal", "-shm"):
        (tmp_path / f"omni-jobs.sqlite{name}").rename(tmp_path / f"elsewhere{name}")
    waiting = asyncio.gather(bench.ledger.report(bench.done(running)), bench.ledger.claim(8, is_idle=False))
    await until(lambda: bench.ledger._pause_s)
    assert not waiting.done()
    for name in ("", "-wal", "-shm"):
        (tmp_path / f"elsewhere{name}").rename(tmp_path / f"omni-jobs.sqlite{name}")
    async with asyncio.timeout(30):
        outcome, claims = await waiting
    assert outcome.won
    assert [claim.attempt for claim in claims.claims] == [1]


async def test_one_bad_completion_does_not_fail_its_neighbours(bench: Bench) -> None:
    claims = await bench.claim_new(3)
    bench.jobs.refuses = claims[1].stage_run_id
    results = await asyncio.gather(
        *(bench.ledger.report(bench.done(claim)) for claim in claims), return_exceptions=True
    )
    assert [isinstance(result, Outcome) and result.won for result in results] == [True, False, True]
    assert isinstance(results[1], StageError)
    failure = Failure(claims[1].stage_run_id, 1, bench.worker.worker_id, ModelError("no", stage="first"))
    assert (await bench.ledger.report(failure)).won
    assert bench.jobs.get(claims[1].job_id).status is JobState.FAILED


async def test_the_heartbeat_names_what_is_no_longer_wanted(bench: Bench) -> None:
    [claim] = await bench.claim_new()
    bench.jobs.cancel(claim.job_id)
    await until(lambda: bench.unwanted)
    assert set(bench.unwanted) == {claim.stage_run_id}
    await bench.hand_back(claim)
    assert bench.jobs.get(claim.job_id).status is JobState.CANCELLED


async def test_a_cancel_does_not_wait_for_the_heartbeat(database: Database) -> None:
    bench = Bench(database, Settings(heartbeat_s=60, lease_s=120, cancel_check_s=0.1))
    await bench.start()
    try:
        [claim] = await bench.claim_new()
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
    [claim] = await bench.claim_new()
    with bench.database.begin() as transaction:
        transaction.execute(delete(WorkerRow))
    await until(lambda: bench.fenced)
    with pytest.raises(Fenced):
        await bench.ledger.report(bench.done(claim))
    await until(lambda: bench.jobs.get(claim.job_id).stages[0].status is StageRunState.QUEUED)
    assert [error.code for error in bench.jobs.get(claim.job_id).stages[0].errors] == ["fenced"]


@pytest.mark.parametrize("begun", [True, False], ids=["its registration is under way", "it has not begun"])
async def test_what_registers_while_the_worker_stops_leaves_no_row(database: Database, begun: bool) -> None:
    """Asked to stop, the pool waits no longer for ``serve``, whose thread goes on."""
    bench = Bench(database)
    await asyncio.to_thread(bench.ledger.take_slot, asyncio.get_running_loop())
    entered, go_on = threading.Event(), threading.Event()
    register = bench.jobs.register_worker

    def held_up(worker: NewWorker, lease_s: float, **options: Any) -> set[str]:
        if not options.get("loading"):
            entered.set()
            go_on.wait(20)
        return register(worker, lease_s, **options)

    bench.jobs.register_worker = held_up  # type: ignore[method-assign]
    if begun:
        serving = asyncio.create_task(asyncio.to_thread(bench.ledger.serve))
        await asyncio.to_thread(entered.wait, 20)
        closing = asyncio.create_task(asyncio.to_thread(bench.ledger.close))
        await until(lambda: bench.ledger._slot._stopped.is_set())
        go_on.set()
        await asyncio.gather(serving, closing)
    else:
        go_on.set()
        await asyncio.to_thread(bench.ledger.close)
        with pytest.raises(Fenced, match="asked to stop"):
            await asyncio.to_thread(bench.ledger.serve)
    await until(lambda: bench.jobs.slot_holder("slot") is None)
    assert bench.jobs.slot_holder("slot") is None


@pytest.mark.parametrize("where", ["renew", "report_progress", "wishes"])
async def test_a_bug_in_the_thread_stops_the_worker_and_frees_what_it_held(database: Database, where: str) -> None:
    """It used to end the thread alone: no heartbeat, every future waiting for ever, and a worker that looks well."""
    beats = Settings(heartbeat_s=0.1 if where == "renew" else 60, lease_s=120, cancel_check_s=0.1)
    bench = Bench(database, beats)
    await bench.start()
    running, waiting = await bench.claim_new(2)
    bench.jobs.bug = where
    if where == "report_progress":
        bench.ledger.report_progress(ProgressReport(running.stage_run_id, 1, 1, None, "tokens"))
    await until(lambda: bench.fenced)
    assert "RuntimeError: a bug" in str(bench.fenced[0])
    for asked in (bench.ledger.report(bench.done(waiting)), bench.ledger.claim(8, is_idle=False)):
        with pytest.raises(Fenced, match="ledger broke"):
            async with asyncio.timeout(30):
                await asked
    await until(lambda: bench.jobs.get(running.job_id).stages[0].status is StageRunState.QUEUED)
    assert bench.jobs.slot_holder("slot") is None
    await asyncio.to_thread(bench.ledger.close)


async def test_what_waits_when_the_thread_breaks_is_told(bench: Bench) -> None:
    [claim] = await bench.claim_new()
    bench.jobs.outages = 10**6
    waiting = asyncio.create_task(bench.ledger.report(bench.done(claim)))
    await until(lambda: bench.jobs.outages < 10**6)
    bench.jobs.bug = "renew"
    with pytest.raises(Fenced, match="ledger broke"):
        async with asyncio.timeout(30):
            await waiting


async def test_a_batch_is_told_again_until_its_answer_is_heard(bench: Bench) -> None:
    """What ended and what comes in its place, while the database is away before and after the commit."""
    ids = bench.submit(60)
    claims = await bench.claim(20)
    for round_, outages in enumerate((1, 2, 3), 1):
        shared = bench.jobs.shared
        ended, wanted = claims, ids[20 * round_ : 20 * (round_ + 1)]
        bench.jobs.outages = outages
        completing = [bench.ledger.report(bench.done(claim)) for claim in ended]
        async with asyncio.timeout(60):
            claims, *outcomes = await asyncio.gather(bench.claim(20, is_idle=False), *completing)
        assert all(outcome.won for outcome in outcomes)
        assert [(claim.job_id, claim.attempt) for claim in claims] == [(job_id, 1) for job_id in wanted]
        assert bench.jobs.outages == 0
        assert bench.jobs.shared > shared + 1
    assert {view.status for view in bench.jobs.list(limit=100).jobs} == {JobState.COMPLETED}


async def test_one_bad_completion_does_not_fail_the_batch(bench: Bench) -> None:
    claims = await bench.claim_new(3)
    bench.jobs.refuses = claims[1].stage_run_id
    bench.submit(2)
    completing = [asyncio.create_task(bench.ledger.report(bench.done(claim))) for claim in claims]
    claiming = asyncio.create_task(bench.claim(2, is_idle=False))
    results = await asyncio.gather(*completing, return_exceptions=True)
    assert [isinstance(result, Outcome) and result.won for result in results] == [True, False, True]
    assert len(await claiming) == 2


async def test_close_retires_and_hands_back(bench: Bench) -> None:
    [claim] = await bench.claim_new()
    await asyncio.to_thread(bench.ledger.close)
    assert bench.jobs.workers() == []
    assert bench.jobs.get(claim.job_id).stages[0].status is StageRunState.QUEUED
    assert bench.doorbells.rung == ["echo.first"]


# Slots.


class Silent(Bench):
    """Holds its slot for a minute and renews nothing: what a killed worker leaves, or one that is stopped."""

    def hold(self) -> list[Claim]:
        self.jobs.register_worker(self.worker, 60.0)
        self.submit()
        return list(self.jobs.claim(self.worker.worker_id, 8).claims)


def of_process(pid: int, started: int | None, space: str | None = None) -> NewWorker:
    space = space or incarnation.pid_space()
    return NewWorker(
        f"worker-{uuid4().hex}", "slot", StageId(PipelineId("echo", "d"), "first"), "here", pid, 8, "1", space, started
    )


@linux_only
async def test_a_dead_predecessors_slot_is_taken_at_once_before_the_engine_is_loaded(database: Database) -> None:
    """No process of its pid is left, so nothing is waited for: the watch would take three heartbeats of a minute."""
    ended = subprocess.Popen(["true"])
    about = of_process(ended.pid, incarnation.started(os.getpid()))
    ended.wait()
    predecessor = Silent(database, worker=about)
    assert len(predecessor.hold()) == 1
    newcomer = Bench(database, Settings(heartbeat_s=60, lease_s=120))
    async with asyncio.timeout(20):
        await asyncio.to_thread(newcomer.ledger.take_slot, asyncio.get_running_loop())
    assert newcomer.doorbells.rung == ["echo.first"]
    assert newcomer.jobs.workers() == [], "it does not serve yet"
    await asyncio.to_thread(newcomer.ledger.serve)
    assert [worker.id for worker in newcomer.jobs.workers()] == [newcomer.worker.worker_id]
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
async def test_a_later_process_of_the_same_pid_is_not_the_predecessor(database: Database) -> None:
    started = incarnation.started(os.getpid())
    assert started is not None
    Silent(database, worker=of_process(os.getpid(), started - 1)).hold()
    newcomer = Bench(database, Settings(heartbeat_s=60, lease_s=120))
    async with asyncio.timeout(20):
        await newcomer.start()
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
@pytest.mark.parametrize("space", [None, "another boot/1"], ids=["its process is stopped", "on another host"])
async def test_a_holder_that_renews_nothing_counts_as_dead(database: Database, space: str | None) -> None:
    with _sleeper() as process:
        if space is None:
            process.send_signal(signal.SIGSTOP)
            here, start = incarnation.pid_space(), incarnation.started(process.pid)
            await until(lambda: incarnation.state(process.pid, here, start) == "stopped")
        holder = Silent(database, worker=of_process(process.pid, incarnation.started(process.pid), space))
        assert len(holder.hold()) == 1
        newcomer = Bench(database)
        async with asyncio.timeout(30):
            await newcomer.start()
        if space is None:
            assert process.wait(30) == -signal.SIGKILL, "else its engine would keep the device's memory"
        else:
            assert process.poll() is None
    assert newcomer.doorbells.rung == ["echo.first"]
    await asyncio.to_thread(newcomer.ledger.close)


@linux_only
async def test_a_holder_that_runs_and_cannot_renew_keeps_its_slot(database: Database) -> None:
    """The database may be busy, for the holder as well: its process is proof enough while its lease lasts."""
    with _sleeper() as process:
        Silent(database, worker=of_process(process.pid, incarnation.started(process.pid))).hold()
        newcomer = Bench(database)
        with pytest.raises(SlotTaken, match=f"pid {process.pid}"):
            await newcomer.start()
        await asyncio.to_thread(newcomer.ledger.close)


class Beating(Silent):
    """Holds its slot, and from ``begin`` on renews its lease all the time; ``lost`` once it could not."""

    def __init__(self, database: Database, worker: NewWorker | None = None) -> None:
        super().__init__(database, worker=worker)
        self.lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def begin(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self.jobs.renew(self.worker.worker_id, 60.0)
            except Fenced:
                self.lost.set()
                return


async def refused(newcomer: Bench, holder: Beating) -> None:
    try:
        with pytest.raises(SlotTaken, match=holder.worker.worker_id):
            async with asyncio.timeout(60):
                await newcomer.start()
    finally:
        holder.end()
        await asyncio.to_thread(newcomer.ledger.close)
    assert not holder.lost.is_set()


async def test_a_holder_that_renews_when_its_slot_is_about_to_be_taken_keeps_it(database: Database) -> None:
    """The newcomer has seen it silent; its registration comes later, as when the database was away between."""
    holder, newcomer = Beating(database), Bench(database)
    holder.hold()
    take = newcomer.jobs.register_worker

    def take_late(*arguments: Any, **options: Any) -> set[str]:
        holder.jobs.renew(holder.worker.worker_id, 60.0)
        holder.begin()
        return take(*arguments, **options)

    newcomer.jobs.register_worker = take_late  # type: ignore[method-assign]
    await refused(newcomer, holder)


async def test_a_holder_lives_though_the_databases_clock_steps_back(database: Database) -> None:
    holder, newcomer = Beating(database), Bench(database)
    holder.hold()
    with database.begin() as tx:
        tx.execute(update(WorkerRow).values(renewed_at=WorkerRow.renewed_at + 3600, lease_until=10**10))
    look = newcomer.jobs.slot_holder

    def slot_holder(slot: str) -> SlotHolder | None:
        found = look(slot)
        holder.begin()  # from now on the clock is an hour earlier
        return found

    newcomer.jobs.slot_holder = slot_holder  # type: ignore[method-assign]
    await refused(newcomer, holder)


async def test_a_holder_is_watched_for_heartbeats_of_its_own(database: Database) -> None:
    """The newcomer's come every 0.1 s: for three of those it would look 46 times."""
    holder, newcomer = Beating(database), Bench(database)
    holder.worker = replace(holder.worker, heartbeat_s=5)
    holder.hold()
    look, looks = newcomer.jobs.slot_holder, iter(range(1000))

    def slot_holder(slot: str) -> SlotHolder | None:
        if next(looks) == 60:
            holder.jobs.renew(holder.worker.worker_id, 60.0)
        return look(slot)

    newcomer.jobs.slot_holder = slot_holder  # type: ignore[method-assign]
    await refused(newcomer, holder)


@linux_only
async def test_a_holder_whose_process_cannot_be_seen_is_watched(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc hides processes of other users where it is mounted so (hidepid)."""
    with _sleeper() as process:
        holder = Beating(database, of_process(process.pid, incarnation.started(process.pid)))
        holder.hold()
        for name in ("self", "sys"):
            (tmp_path / name).symlink_to(Path("/proc") / name)
        monkeypatch.setattr(incarnation, "_PROC", tmp_path)
        assert incarnation.pid_space() == holder.worker.pid_space
        holder.begin()
        await refused(Bench(database), holder)


@contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "300"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("loading", [False, True], ids=["serves", "loads"])
@pytest.mark.parametrize("known", [True, False], ids=["a process here", "one without /proc"])
async def test_the_slot_of_a_living_worker_is_refused(database: Database, known: bool, loading: bool) -> None:
    about = of_process(os.getpid(), incarnation.started(os.getpid())) if known else None
    holder = Bench(database, worker=about)
    await asyncio.to_thread(holder.ledger.take_slot, asyncio.get_running_loop())
    if not loading:
        await asyncio.to_thread(holder.ledger.serve)
    newcomer = Bench(database)
    with pytest.raises(SlotTaken) as caught:
        await newcomer.start()
    for part in ("slot", holder.worker.worker_id, holder.worker.host, str(holder.worker.pid), "--slot", "hostname"):
        assert part in str(caught.value)
    await asyncio.to_thread(newcomer.ledger.close)
    assert holder.fenced == []
    if loading:
        await asyncio.to_thread(holder.ledger.serve)
    assert len(await holder.claim_new()) == 1
    await asyncio.to_thread(holder.ledger.close)


async def test_a_worker_that_loads_for_longer_than_its_lease_keeps_its_slot(database: Database) -> None:
    bench = Bench(database)
    await asyncio.to_thread(bench.ledger.take_slot, asyncio.get_running_loop())
    with database.begin() as transaction:
        transaction.execute(delete(WorkerRow))  # its lease was over, and a rescuer came by
    await until(lambda: bench.jobs.slot_holder("slot"))
    await asyncio.to_thread(bench.ledger.serve)
    assert len(await bench.claim_new()) == 1
    assert bench.fenced == []
    await asyncio.to_thread(bench.ledger.close)


async def test_a_loading_worker_whose_slot_is_another_s_stops(database: Database) -> None:
    bench, rival = Bench(database), Bench(database)
    await asyncio.to_thread(bench.ledger.take_slot, asyncio.get_running_loop())
    rival.jobs.register_worker(rival.worker, 60.0, instead_of=bench.jobs.slot_holder("slot"))
    await until(lambda: bench.fenced)
    with pytest.raises(Fenced, match=rival.worker.worker_id):
        await asyncio.to_thread(bench.ledger.serve)
    await asyncio.to_thread(bench.ledger.close)


def take_slot(other: Silent) -> None:
    """Register this worker in place of the one that lives in its slot, which may renew its lease at any moment."""
    while True:
        try:
            other.jobs.register_worker(other.worker, 60.0, instead_of=other.jobs.slot_holder("slot"))
        except SlotTaken:
            continue
        return


async def test_a_worker_that_lives_takes_back_what_was_counted_as_its_loss(bench: Bench) -> None:
    [claim] = await bench.claim_new()
    other = Silent(bench.database)
    take_slot(other)
    await until(lambda: bench.fenced)
    await until(lambda: [error.code for error in bench.jobs.get(claim.job_id).stages[0].errors] == ["fenced"])
    [again] = bench.jobs.claim(other.worker.worker_id, 8).claims
    assert failures(other.jobs, again) == {"worker_lost": 0, "fenced": 1}


@pytest.mark.parametrize("rescued", [True, False], ids=["after the rescuer", "before the rescuer"])
async def test_a_stage_run_that_starves_every_worker_is_quarantined(database: Database, rescued: bool) -> None:
    """Each of its workers loses its lease, and lives: whether a rescuer or the worker itself notices first."""
    jobs = FlakyJobs(database)
    Bench(database).submit()
    limits, alone = DEFAULT_RETRIES, []
    while (job := jobs.list().jobs[0]).status in (JobState.QUEUED, JobState.IN_PROGRESS):
        assert len(alone) <= limits.fenced + limits.worker_lost, "without end"
        bench = Bench(database, Settings(heartbeat_s=60, lease_s=120))
        await bench.start()
        [claim] = await bench.claim()
        alone.append(claim.alone)
        with database.begin() as tx:
            if rescued:
                tx.execute(update(WorkerRow).values(lease_until=0))
            else:  # a rescuer is at it: it removes the row, and frees the stage runs a moment later
                tx.execute(delete(WorkerRow))
        if rescued:
            assert jobs.rescue().freed == 1
        with pytest.raises(Fenced):
            await bench.claim()
        await asyncio.to_thread(bench.ledger.close)
    assert job.error is not None
    assert job.error.code == "quarantined"
    codes = ["fenced"] * limits.fenced + (["worker_lost"] * (limits.worker_lost + 1) if rescued else ["fenced"])
    assert [error.code for error in job.stages[0].errors] == codes
    assert alone == [attempt >= limits.fenced for attempt in range(len(alone))]


async def test_a_claim_whose_answer_was_lost_is_forgiven_as_well(bench: Bench) -> None:
    other = Silent(bench.database)
    bench.submit()

    def lost(worker_id: str, at_most: int, **options: Any) -> Claims:
        assert len(Jobs(bench.database).claim(worker_id, at_most, **options).claims) == 1
        take_slot(other)
        raise DatabaseUnavailable

    bench.jobs.claim = lost  # type: ignore[method-assign]
    with pytest.raises(Fenced):
        await bench.claim()
    [run] = bench.jobs.list().jobs[0].stages
    await until(lambda: [error.code for error in bench.jobs.list().jobs[0].stages[0].errors] == ["fenced"])
    assert run.attempt == 1


async def test_a_pause_is_told_once_and_its_end_as_well(bench: Bench) -> None:
    assert bench.ledger.is_paused is False
    bench.jobs.pause(StageId(PipelineId("echo", ""), "first"))
    await until(lambda: bench.pauses)
    renewed_at = bench.jobs.workers()[0].renewed_at
    await until(lambda: bench.jobs.workers()[0].renewed_at > renewed_at)
    assert (bench.pauses, bench.ledger.is_paused) == ([True], True)
    bench.jobs.resume(StageId(PipelineId("echo", ""), "first"))
    await until(lambda: len(bench.pauses) > 1)
    assert (bench.pauses, bench.ledger.is_paused) == ([True, False], False)


async def test_a_worker_that_starts_knows_of_a_pause_before_it_may_claim(database: Database) -> None:
    bench = Bench(database)
    bench.jobs.pause(StageId(PipelineId("echo", ""), "first"))
    await bench.start()
    assert bench.ledger.is_paused
    await asyncio.to_thread(bench.ledger.close)


async def test_a_worker_tells_how_long_its_stage_runs_take(bench: Bench) -> None:
    [claimed] = await bench.claim_new()
    await bench.ledger.report(bench.done(claimed))

    def told() -> object:
        with bench.database.begin() as tx:
            return tx.execute(select(WorkerRow.run_s)).scalar_one()

    await until(lambda: told() is not None)


async def test_observers_hear_what_is_recorded_in_batches(bench: Bench) -> None:
    """The one of this bench fails each time, which harms nothing in any test of this file."""
    claims = await bench.claim_new(3)
    done, bad, back = (claim.stage_run_id for claim in claims)
    failure = Failure(bad, 1, bench.worker.worker_id, ModelError("no", stage="first"))
    ends = (bench.ledger.report(bench.done(claims[0])), bench.ledger.report(failure), bench.hand_back(claims[2]))
    await asyncio.gather(*ends)
    assert not (await bench.ledger.report(replace(bench.done(claims[0]), attempt=9))).won
    await until(lambda: len(bench.heard.told) == 3)
    assert bench.heard.told == [
        ("claimed", [done, bad, back]),
        ("ended", [done, bad, back], [True, True, True]),
        ("ended", [done], [False]),
    ]
