"""The ledger on a real database that sometimes does not answer."""

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text, update

from omni_jobs.database.database import Database
from omni_jobs.database.tables import WorkerRow
from omni_jobs.errors import DatabaseUnavailable, Fenced, ModelError, StageError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Claim, Claims, Failure, Jobs, NewSnapshot, NewWorker, Outcome, ProgressReport
from omni_jobs.metrics.stage_stats import StageStats, WorkerStats
from omni_jobs.retry import DEFAULT_RETRIES
from omni_jobs.settings import Settings
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef, snapshot_key
from tests.integration.execution.ledger_bench import Bench, FlakyJobs, Silent, take_slot, until
from tests.integration.job_steps import failures


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
