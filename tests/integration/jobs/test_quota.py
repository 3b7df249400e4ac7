"""The limit ``running_jobs``: how many jobs of a tenant are let in, which are next, and what they wait for."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError, WorkerLost
from omni_jobs.identity import PipelineId
from omni_jobs.jobs import Claim, JobFilter, Jobs, Retention
from omni_jobs.jobs.life.retry_job import retry
from omni_jobs.jobs.life.submit import rows_of
from omni_jobs.jobs.life.submit import submit as submit_in
from omni_jobs.priority import Priority
from omni_jobs.states import JobState
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    CHAIN,
    DIAMOND,
    TWICE,
    claim,
    complete_all,
    complete_each,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    register_each,
    release,
    stages,
    submit_one,
)
from tests.services.postgres import until_one_waits_for_a_lock

ONE: dict[str, list[str]] = {"first": []}
TWO_ROOTS: dict[str, list[str]] = {"first": [], "second": [], "third": ["first", "second"]}
postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
KEEP_NOTHING = Retention(payloads_s=0, inputs_s=0, artifacts_s=0, events_s=0, jobs_s=0)


@pytest.fixture
def tenants(database: Database) -> Tenants:
    """With the tenant ``few``, of which two jobs may run at a time, and ``many``, which has no limit."""
    tenants = Tenants(database)
    tenants.create("few", limits={"running_jobs": 2})
    tenants.create("many")
    return tenants


def submit(jobs: Jobs, count: int = 1, graph: dict[str, list[str]] = ONE, **changes: object) -> list[str]:
    return [submit_one(jobs, new_job(graph, **({"tenant": "few"} | changes))).job_id for _ in range(count)]


def held(jobs: Jobs, tenant: str = "few") -> set[str]:
    """The jobs that wait for their tenant's quota, as the list shows them."""
    page = jobs.list(JobFilter(tenant=tenant), limit=100).jobs
    return {job.id for job in page if job.waiting is not None and job.waiting.reason == "quota"}


def counted(database: Database, tenant: str = "few") -> dict[str, bool]:
    """Whether each job that has a row is let in."""
    with database.begin() as tx:
        rows = tx.execute(text("SELECT job_id, is_let_in FROM quota_jobs WHERE tenant = :t"), {"t": tenant})
        return {row.job_id: bool(row.is_let_in) for row in rows}


@pytest.mark.usefixtures("tenants")
def test_as_many_jobs_are_let_in_as_may_run(jobs: Jobs, database: Database) -> None:
    results = [submit_one(jobs, new_job(tenant="few")) for _ in range(4)]
    assert [set(result.queues) for result in results] == [{"echo.first"}, {"echo.first"}, set(), set()]
    assert {result.created_at for result in results} == {None}, "the view is read, because the job may be held"
    ids = [result.job_id for result in results]
    assert held(jobs) == set(ids[2:])
    assert counted(database) == dict(zip(ids, [True, True, False, False], strict=True))
    assert stages(jobs, ids[3]) == {"first": "pending", "second": "pending"}
    register_each(jobs)
    assert [each.job_id for each in claim(jobs, "first")] == ids[:2]


@pytest.mark.usefixtures("tenants")
def test_a_batch_is_held_as_single_submits_are(jobs: Jobs) -> None:
    batch = [new_job(ONE, tenant=tenant) for tenant in ("few", "many") * 4]
    jobs.submit_all(batch)
    assert held(jobs) == {job.job_id for job in batch[4::2]}
    assert held(jobs, "many") == set()


@pytest.mark.usefixtures("tenants")
def test_jobs_of_tenants_without_the_limit_have_no_row(jobs: Jobs, database: Database) -> None:
    submit(jobs, 3, tenant="many")
    submit(jobs, 3, tenant="unknown")
    assert counted(database, "many") == counted(database, "unknown") == {}


@pytest.mark.usefixtures("tenants")
def test_a_held_job_says_so_until_it_is_let_in(jobs: Jobs) -> None:
    ids = submit(jobs, 3, TWO_ROOTS)
    waiting = jobs.get(ids[2]).waiting
    assert waiting is not None
    assert (waiting.reason, waiting.stage, waiting.position, waiting.estimate) == ("quota", "first", None, None)
    assert waiting.message == "tenant few may run 2 jobs at a time: this one goes on when another has ended"
    assert [stage.reason for stage in jobs.get(ids[2]).stages] == ["quota", "quota", None]
    assert {stage.queued_at for stage in jobs.get(ids[2]).stages} == {None}
    jobs.cancel(ids[0])
    found = jobs.get(ids[2])
    assert found.waiting is not None
    assert found.waiting.reason == "no_worker"
    assert [stage.status.value for stage in found.stages] == ["queued", "queued", "pending"]
    assert found.stages[0].queued_at is not None


@pytest.mark.usefixtures("tenants")
def test_the_lowest_turn_is_let_in_first(jobs: Jobs) -> None:
    ids = submit(jobs, 4)
    [urgent] = submit(jobs, priority=Priority.HIGH)
    jobs.cancel(ids[0])
    assert held(jobs) == {ids[2], ids[3]}
    jobs.cancel(urgent)
    assert held(jobs) == {ids[3]}


@pytest.mark.usefixtures("tenants")
def test_the_jobs_of_all_pipelines_count(jobs: Jobs) -> None:
    ids = [submit(jobs, pipeline=PipelineId(pipeline, "d"))[0] for pipeline in ("echo", "else", "else")]
    assert held(jobs) == {ids[2]}
    jobs.cancel(ids[0])
    assert held(jobs) == set()


def complete(jobs: Jobs, claimed: Claim) -> set[str]:
    [outcome] = jobs.report([done(claimed, "first")])
    return set(outcome.queues)


def fail_for_good(jobs: Jobs, claimed: Claim) -> set[str]:
    return set(fail(jobs, failed(claimed, "first", ModelError("no"))).queues)


def quarantine(jobs: Jobs, claimed: Claim) -> set[str]:
    for _ in range(TWICE.worker_lost):
        fail(jobs, failed(claimed, "first", WorkerLost()))
        [claimed] = claim(jobs, "first", 1)
    return set(fail(jobs, failed(claimed, "first", WorkerLost())).queues)


@pytest.mark.parametrize("end", [complete, fail_for_good, quarantine])
@pytest.mark.usefixtures("tenants")
def test_the_end_of_a_running_job_lets_in_the_next(
    jobs: Jobs, database: Database, end: Callable[[Jobs, Claim], set[str]]
) -> None:
    register(jobs, "first")
    ids = submit(jobs, 3)
    [claimed] = claim(jobs, "first", 1)
    assert "echo.first" in end(jobs, claimed)
    assert jobs.get(ids[0]).status.is_final
    assert held(jobs) == set()
    assert counted(database) == {ids[1]: True, ids[2]: True}


@pytest.mark.usefixtures("tenants")
def test_a_job_counts_until_its_last_stage_run_has_stopped(jobs: Jobs) -> None:
    register(jobs, "first")
    ids = submit(jobs, 3)
    claimed, _ = claim(jobs, "first", 2)
    assert jobs.cancel(ids[0]) is JobState.CANCELLING
    assert held(jobs) == {ids[2]}
    assert release(jobs, [(claimed.stage_run_id, claimed.attempt)], "first") == {"echo.first"}
    assert held(jobs) == set()


@pytest.mark.usefixtures("tenants")
def test_an_expiry_lets_in_the_next(jobs: Jobs, database: Database) -> None:
    late = submit(jobs, 2, expires_in_s=50.0)
    held_and_late = submit(jobs, expires_in_s=50.0)
    last = submit(jobs, 2)
    pass_time(database, 60)
    assert set(jobs.rescue().queues) == {"echo.first"}
    assert {jobs.get(job_id).status for job_id in late + held_and_late} == {JobState.EXPIRED}
    assert counted(database) == dict.fromkeys(last, True)


@pytest.mark.usefixtures("tenants")
def test_a_held_job_can_be_cancelled(jobs: Jobs, database: Database) -> None:
    ids = submit(jobs, 4)
    assert jobs.cancel(ids[2]) is JobState.CANCELLED
    assert jobs.get(ids[2]).stages[0].reason is None
    assert counted(database) == {ids[0]: True, ids[1]: True, ids[3]: False}


@pytest.mark.usefixtures("tenants")
def test_a_retry_is_held_as_a_submit_is(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    [retried] = submit(jobs, graph=CHAIN)
    complete_all(jobs, "first")
    [claimed] = claim(jobs, "second")
    fail(jobs, failed(claimed, "second", ModelError("no")))
    others = submit(jobs, 2)
    assert jobs.retry(retried) == set()
    assert stages(jobs, retried) == {"first": "succeeded", "second": "pending"}
    assert held(jobs) == {retried}
    # A late report of the attempt before changes nothing.
    fail(jobs, failed(claimed, "second", ModelError("no")))
    jobs.report([done(claimed, "second")])
    assert held(jobs) == {retried}
    jobs.cancel(others[0])
    assert stages(jobs, retried) == {"first": "succeeded", "second": "queued"}
    complete_all(jobs, "second")
    assert jobs.get(retried).status is JobState.COMPLETED
    assert counted(database) == {others[1]: True}
    jobs.cancel(others[1])
    assert jobs.retry(retried, "first") == {"echo.first"}


@pytest.mark.parametrize("change", ["raised", "removed", "tenant deleted"])
def test_a_changed_limit_holds_from_the_rescuers_next_round_on(
    jobs: Jobs, database: Database, tenants: Tenants, change: str
) -> None:
    ids = submit(jobs, 4)
    if change == "tenant deleted":
        with database.begin() as tx:
            tx.execute(text("DELETE FROM tenants"))
    else:
        tenants.set("few", limits={"running_jobs": 4 if change == "raised" else None})
    assert set(jobs.rescue().queues) == {"echo.first"}
    assert counted(database) == dict.fromkeys(ids, True)
    assert jobs.rescue().queues == set()
    register(jobs, "first")
    complete_all(jobs, "first")
    assert counted(database) == {}


def test_a_lowered_limit_takes_no_job_back(jobs: Jobs, tenants: Tenants) -> None:
    ids = submit(jobs, 3)
    tenants.set("few", limits={"running_jobs": 1})
    jobs.rescue()
    jobs.cancel(ids[0])
    assert held(jobs) == {ids[2]}
    jobs.cancel(ids[1])
    assert held(jobs) == set()


@pytest.mark.usefixtures("tenants")
def test_no_row_stays_of_a_job_that_is_gone(jobs: Jobs, database: Database) -> None:
    register(jobs, "first")
    ids = submit(jobs, 3)
    for _ in ids:
        complete_all(jobs, "first")
    assert counted(database) == {}
    jobs.delete(ids[0])
    assert jobs.prune(KEEP_NOTHING).jobs == 2


@pytest.mark.usefixtures("tenants")
def test_lost_answers_let_in_no_more(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    register_each(jobs, DIAMOND)
    ids = submit(jobs, 5, DIAMOND)
    for _ in range(3):
        assert sum(counted(database).values()) == min(2, len(counted(database)))
        complete_each(jobs, DIAMOND)
    assert {jobs.get(job_id).status for job_id in ids} == {JobState.COMPLETED}
    assert counted(database) == {}


@pytest.mark.usefixtures("tenants")
def test_the_limit_holds_while_all_come_and_go_at_once(database: Database, database_url: str) -> None:
    """Threads with two pools of connections submit, run, cancel and retry; a look at any time finds two at most."""
    other = Database(database_url)
    for number in range(4):
        register(Jobs(database), f"w{number}")
    seen: set[int] = set()

    def come_and_go(number: int) -> None:
        jobs = Jobs((database, other)[number % 2])
        worker = f"w{number % 4}"
        for step in range(6):
            [first] = submit(jobs)
            second = new_job(ONE, tenant="few")
            jobs.submit_all([second, new_job(ONE, tenant="many")])
            seen.add(sum(counted(database).values()))
            claims = claim(jobs, worker, 2)
            if step % 3 == 0:
                jobs.cancel(first)
            jobs.report([done(each, worker) for each in claims[:1]])
            for each in claims[1:]:
                fail(jobs, failed(each, worker, ModelError("no")))
                if jobs.get(each.job_id).status is JobState.FAILED:
                    jobs.retry(each.job_id)
            seen.add(sum(counted(database).values()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(come_and_go, range(4)))
    assert max(seen) <= 2
    rows = counted(database)
    assert sum(rows.values()) == min(2, len(rows)), "no room is left while some are held"
    jobs = Jobs(database)
    for _ in rows:
        complete_all(jobs, "w0")
        assert sum(counted(database).values()) <= 2
    other.close()
    assert {job.status.is_final for job in jobs.list(JobFilter(tenant="few"), limit=100).jobs} == {True}
    assert counted(database) == {}


@postgresql_only
@pytest.mark.usefixtures("tenants")
def test_who_lets_in_waits_for_another_who_does(jobs: Jobs, database: Database) -> None:
    """In another pipeline, because a tenant's submits to one pipeline wait for each other's turns anyway."""
    submit(jobs)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            submit_in(tx, [rows_of(new_job(ONE, tenant="few"))])
            later = pool.submit(submit, jobs, pipeline=PipelineId("else", "d"))
            until_one_waits_for_a_lock(database)
        third = later.result(30)
    assert held(jobs) == set(third)


@postgresql_only
@pytest.mark.usefixtures("tenants")
def test_a_held_job_that_is_being_cancelled_is_passed_over(jobs: Jobs, database: Database) -> None:
    ids = submit(jobs, 4)
    with database.begin() as tx, ThreadPoolExecutor(1) as pool:
        tx.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": ids[2]})
        tx.execute(text("SELECT 1 FROM stage_runs WHERE job_id = :id FOR UPDATE"), {"id": ids[2]})
        pool.submit(jobs.cancel, ids[0]).result(30)
    assert held(jobs) == {ids[2]}


@postgresql_only
@pytest.mark.usefixtures("tenants")
def test_a_cancel_that_has_waited_for_a_retry_knows_that_the_job_counts(jobs: Jobs, database: Database) -> None:
    [job_id] = submit(jobs)
    jobs.cancel(job_id)
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:
            retry(tx, job_id, None, {}, "token")
            cancelled = pool.submit(jobs.cancel, job_id)
            until_one_waits_for_a_lock(database)
        assert cancelled.result(30) is JobState.CANCELLED
    assert counted(database) == {}


@pytest.mark.usefixtures("tenants")
def test_who_joins_while_old_jobs_are_let_in_comes_behind_what_waits(jobs: Jobs) -> None:
    """A job that is let in has a new turn, so that neither it nor the virtual time falls back to when it was held."""
    register(jobs, "w", slots=1)
    old = submit(jobs, 4)
    busy = submit(jobs, 20, tenant="many")
    done_first = [claim(jobs, "w", 1)[0] for _ in range(12)]
    assert {old[0], old[1]} <= {each.job_id for each in done_first}
    for each in done_first:
        if each.job_id in old:
            jobs.report([done(each, "w")])
    assert held(jobs) == set()
    late = submit(jobs, 5, tenant="late")
    order = [claim(jobs, "w", 1)[0].job_id for _ in range(8)]
    assert order == [old[2], busy[10], late[0], old[3], busy[11], late[1], busy[12], late[2]]
