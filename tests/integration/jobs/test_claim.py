"""Claims: which stage runs a worker gets, in which order, beside whom, and with which plans of the databases."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, text

from omni_jobs.database.database import Database
from omni_jobs.database.statement import Statement, Statements
from omni_jobs.errors import Fenced, ModelError, OutOfMemory
from omni_jobs.jobs import Claim, Claims, Jobs, Release
from omni_jobs.jobs.life import claim as claim_module
from omni_jobs.jobs.life import transition
from omni_jobs.jobs.life.transition import JobTransition
from omni_jobs.jobs.order import quota, take_turns, virtual_times
from omni_jobs.priority import Priority
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    DIAMOND,
    ForgetfulDatabase,
    claim,
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
from tests.services.postgres import by_owner

ONLY: dict[str, list[str]] = {"first": []}
postgresql_only = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def submit(jobs: Jobs, count: int = 1) -> list[str]:
    """Submit so many jobs of one stage, and return their ids."""
    new = [new_job(ONLY) for _ in range(count)]
    jobs.submit_all(new)
    return [job.job_id for job in new]


def job_ids(claims: Claims | list[Claim]) -> list[str]:
    return [each.job_id for each in (claims.claims if isinstance(claims, Claims) else claims)]


def lose(jobs: Jobs, *, times: int = 2) -> None:
    """Lose workers one after the other while they run all that waits; after TWICE it is suspect."""
    for n in range(times):
        register(jobs, f"lost-{n}", slot="dies")
        assert claim(jobs, f"lost-{n}")
    register(jobs, "idler", "none", slot="dies")


# what a claim gives


@pytest.mark.parametrize("at_once", [1, 7, 100])
def test_few_are_claimed_as_many_are(jobs: Jobs, at_once: int) -> None:
    def claim_all(stage: str) -> list[Claim]:
        found: list[Claim] = []
        more = True
        while more:
            claims, more, *_ = jobs.claim(stage, at_once)
            assert more == (len(claims) == at_once)
            found += claims
        return found

    wanted = [new_job(DIAMOND, seed=number, request={"number": number}) for number in range(20)]
    jobs.submit_all(wanted)
    register_each(jobs, DIAMOND, slots=100)
    claims = claim_all("a")
    assert [(each.job_id, each.stage, each.attempt, each.request, each.seed, each.upstream) for each in claims] == [
        (job.job_id, "a", 1, job.request, job.seed, {}) for job in wanted
    ]
    assert {jobs.get(job.job_id).status for job in wanted} == {JobState.IN_PROGRESS}
    assert all(jobs.get(each.job_id).stages[0].worker == "a" for each in claims)
    outcomes = jobs.report([done(each, "a", inline_payload=bytes([n])) for n, each in enumerate(claims)])
    assert {queue for outcome in outcomes for queue in outcome.queues} == {"echo.b", "echo.c"}
    for stage in "bc":
        assert [(each.stage, each.job_id, each.upstream) for each in claim_all(stage)] == [
            (stage, job.job_id, {"a": bytes([n])}) for n, job in enumerate(wanted)
        ]
    assert claim(jobs, "d") == []


def test_a_claim_gives_all_it_takes_to_run(jobs: Jobs) -> None:
    media = [{"key": "k", "size": 1, "digest": "d", "media_type": "audio/wav"}]
    submit_one(jobs, new_job(request={"a": 1}, media=media))
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    assert (claimed.stage, claimed.attempt, claimed.has_successors) == ("first", 1, True)
    assert claimed.request == {"a": 1}
    assert claimed.media == media
    assert claimed.upstream == {}
    assert claimed.seed == 2**63 - 1
    view = jobs.get(claimed.job_id)
    assert view.status == JobState.IN_PROGRESS
    assert view.started_at is not None
    assert view.stages[0].worker == "w"
    assert view.stages[0].started_at == view.started_at


def test_claims_need_a_live_lease(jobs: Jobs, database: Database) -> None:
    [job_id] = submit(jobs)
    with pytest.raises(Fenced):
        claim(jobs, "unknown")
    register(jobs, "w")
    pass_time(database, 100)
    assert claim(jobs, "w") == []
    assert stages(jobs, job_id)["first"] == "queued"
    jobs.rescue()
    with pytest.raises(Fenced):
        claim(jobs, "w")


# the order


def test_the_lowest_turns_are_claimed_first_and_the_oldest_of_equal_ones(jobs: Jobs, database: Database) -> None:
    with database.begin() as tx:
        tx.execute(text("INSERT INTO tenants (name, weight, created_at) VALUES ('b', 2.0, 1.0)"))
    register(jobs, "w")
    submit(jobs)
    claim(jobs, "w")
    wishes = ["a1", "a2", "b1", "b2", "b3", "a-high", "a-low", "b4"]
    priorities = {"a-high": Priority.HIGH, "a-low": Priority.LOW}
    for name in wishes:
        submit_one(jobs, new_job(ONLY, job_id=name, tenant=name[0], priority=priorities.get(name, Priority.NORMAL)))
    first = jobs.claim("w", 4)
    assert job_ids(first) == ["b1", "a1", "b2", "a-high"]
    assert first.more
    last = jobs.claim("w", 100)
    assert job_ids(last) == ["b3", "a2", "b4", "a-low"]
    assert not last.more


def test_what_is_not_due_keeps_its_turn_and_holds_up_nobody(jobs: Jobs, database: Database) -> None:
    ids = submit(jobs, 3)
    register(jobs, "w", lease_s=10_000)
    (claimed,) = claim(jobs, "w", 1)
    fail(jobs, failed(claimed, "w", OutOfMemory()))
    assert job_ids(claim(jobs, "w", 1)) == ids[1:2]
    pass_time(database, 100)
    assert job_ids(claim(jobs, "w", 1)) == ids[:1]


def test_rivals_share_the_work(jobs: Jobs) -> None:
    ids = submit(jobs, 150)
    workers = [f"w{n}" for n in range(4)]
    for worker in workers:
        register(jobs, worker)

    def take(worker: str) -> list[str]:
        found: list[str] = []
        more = True
        while more:
            claims, more, *_ = jobs.claim(worker, 16, is_idle=not found)
            found += job_ids(list(claims))
        return found

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, workers))
    assert sorted(each for found in taken for each in found) == sorted(ids)
    assert all(found == sorted(found) for found in taken), "each worker's own are in order"


# locks


@postgresql_only
def test_a_claim_waits_for_no_lock(jobs: Jobs, database: Database) -> None:
    """Rows that another transaction has locked are passed over, and a locked job is left to who has locked it."""
    ids = submit(jobs, 4)
    register(jobs, "w")
    with database.begin() as tx:
        tx.execute(text("SELECT 1 FROM stage_runs WHERE job_id = :a OR job_id = :b FOR UPDATE"), _named(ids[:2]))
        tx.execute(text("SELECT 1 FROM jobs WHERE id = :a FOR UPDATE"), _named(ids[2:]))
        with ThreadPoolExecutor(1) as pool:
            claims = pool.submit(jobs.claim, "w", 2).result(30)
        assert job_ids(claims) == ids[2:]
    assert [jobs.get(job_id).status for job_id in ids[2:]] == [JobState.QUEUED, JobState.IN_PROGRESS]
    assert job_ids(jobs.claim("w", 100)) == ids[:2]
    jobs.report([done(each, "w") for each in claims.claims])
    assert [jobs.get(job_id).status for job_id in ids[2:]] == [JobState.COMPLETED] * 2


def _named(ids: Sequence[str]) -> dict[str, str]:
    return dict(zip("ab", ids, strict=True))


@postgresql_only
@pytest.mark.parametrize("ending", ["complete", "release"])
def test_a_cancel_whose_stage_run_is_claimed_meanwhile_ends_well(jobs: Jobs, database: Database, ending: str) -> None:
    job_id = submit_one(jobs, new_job()).job_id
    register(jobs, "w")
    with database.begin() as tx:
        transition = JobTransition.of_job(tx, job_id)
        (claimed,) = claim(jobs, "w")
        transition.stop({job_id: None})
        transition.write()
    assert jobs.get(job_id).status == JobState.CANCELLING
    assert stages(jobs, job_id) == {"first": "running", "second": "cancelled"}
    assert jobs.renew("w", 60).wishes.unwanted == [claimed.stage_run_id]
    if ending == "complete":
        assert not jobs.report([done(claimed, "w")])[0].won
    else:
        assert release(jobs, [(claimed.stage_run_id, 1)], "w") == set()
    assert jobs.get(job_id).status == JobState.CANCELLED
    assert stages(jobs, job_id) == {"first": "cancelled", "second": "cancelled"}


@postgresql_only
def test_a_failing_job_stops_what_was_claimed_meanwhile(jobs: Jobs, database: Database) -> None:
    job_id = submit_one(jobs, new_job({"a": [], "b": []})).job_id
    register_each(jobs, "ab")
    (a,) = claim(jobs, "a")
    with database.begin() as tx:
        transition = JobTransition.of_stage_runs(tx, [a.stage_run_id])
        (b,) = claim(jobs, "b")
        transition.fail(transition.runs[a.stage_run_id], ModelError())
        transition.write()
    assert jobs.get(job_id).status == JobState.FAILED
    assert jobs.wishes("b").unwanted == [b.stage_run_id]
    assert not jobs.report([done(b, "b")])[0].won
    assert stages(jobs, job_id) == {"a": "failed", "b": "cancelled"}


# suspects


def test_a_suspect_is_claimed_by_itself_and_before_others(jobs: Jobs) -> None:
    [suspect] = submit(jobs)
    alone = []
    for n in range(3):
        others = submit(jobs, 2) if n == 2 else []
        register(jobs, f"w{n}", slot="slot")
        claims = jobs.claim(f"w{n}", 100)
        assert job_ids(claims) == [suspect]
        alone += [each.alone for each in claims.claims]
    assert alone == [False, False, True]
    assert claims.more, "the others wait"
    register(jobs, "w3", slot="slot")
    assert jobs.get(suspect).status == JobState.FAILED
    assert job_ids(claim(jobs, "w3")) == others


def test_a_busy_worker_sets_a_suspect_apart_and_others_pass_over_it(jobs: Jobs, database: Database) -> None:
    [suspect] = submit(jobs)
    lose(jobs)
    others = submit(jobs, 4)
    for worker in ("busy", "other"):
        register(jobs, worker)
    for _ in range(2):  # until it is idle
        assert jobs.claim("busy", 100, is_idle=False) == Claims((), suspect_waits=True)
    assert job_ids(jobs.claim("other", 2)) == others[:2]
    assert job_ids(jobs.claim("other", 2, is_idle=False)) == others[2:]
    assert job_ids(jobs.claim("busy", 100)) == [suspect]


@pytest.mark.parametrize("end", ["retires", "dies"])
def test_a_suspect_whose_keeper_is_gone_is_anybodys(jobs: Jobs, database: Database, end: str) -> None:
    [suspect] = submit(jobs)
    lose(jobs)
    register(jobs, "keeper", lease_s=10)
    register(jobs, "other", lease_s=10_000)
    assert jobs.claim("keeper", 1, is_idle=False).suspect_waits
    assert claim(jobs, "other") == []
    if end == "retires":
        jobs.retire_worker("keeper")
    else:
        pass_time(database, 10)
    assert job_ids(jobs.claim("other", 1)) == [suspect]


@postgresql_only
def test_a_suspect_that_is_locked_is_not_waited_for(jobs: Jobs, database: Database) -> None:
    [suspect] = submit(jobs)
    lose(jobs)
    register(jobs, "w")
    with database.begin() as tx:
        tx.execute(text("SELECT 1 FROM stage_runs FOR UPDATE"))
        with ThreadPoolExecutor(1) as pool:
            for is_idle in (True, False):
                assert pool.submit(jobs.claim, "w", 5, is_idle=is_idle).result(30) == Claims(())
    assert job_ids(jobs.claim("w", 5)) == [suspect]


def test_of_rivals_for_a_suspect_one_gets_it(jobs: Jobs) -> None:
    [suspect] = submit(jobs)
    lose(jobs)
    for n in range(4):
        register(jobs, f"w{n}")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: job_ids(jobs.claim(f"w{n}", 9)), range(4)))
    assert sorted(found) == [[], [], [], [suspect]]


def test_what_is_forgiven_is_no_suspect_any_more(jobs: Jobs) -> None:
    [job_id] = submit(jobs)
    lose(jobs)
    [other] = submit(jobs)
    jobs.forgive("lost-1")
    register(jobs, "w")
    claims = jobs.claim("w", 5)
    assert job_ids(claims) == [job_id, other]
    assert [each.alone for each in claims.claims] == [False, False]


# lost answers


def test_a_claim_whose_answer_was_lost_gives_the_same_and_no_others(database_url: str) -> None:
    database = ForgetfulDatabase(database_url)
    jobs = Jobs(database)
    ids = submit(jobs, 6)
    register(jobs, "w")
    first = jobs.claim("w", 2)
    assert job_ids(first) == ids[:2]
    held = [each.stage_run_id for each in first.claims]
    second = jobs.claim("w", 2, is_idle=False, held=held)
    assert job_ids(second) == ids[2:4]
    assert [each.attempt for each in (*first.claims, *second.claims)] == [1] * 4
    database.close()


def test_again_gives_what_the_worker_does_not_know_it_holds(jobs: Jobs) -> None:
    ids = submit(jobs, 4)
    register(jobs, "w")
    lost = jobs.claim("w", 2)
    again = jobs.claim("w", 1, again=True)
    assert again.claims == list(lost.claims)
    assert again.more
    held = [each.stage_run_id for each in lost.claims]
    assert job_ids(jobs.claim("w", 1, held=held, again=True)) == ids[2:3], "nothing was lost: a claim like any"
    reports = [done(each, "w") for each in lost.claims]
    claims = jobs.claim("w", 100, reports=reports, held=held, again=True)
    assert [outcome.won for outcome in claims.outcomes] == [True, True]
    assert job_ids(claims) == ids[2:3], "no others before the worker has this"


def test_what_is_handed_back_and_claimed_anew_is_not_lost_with_the_answer(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    [job_id] = submit(jobs)
    [claimed] = claim(jobs, "w")
    held = [claimed.stage_run_id]
    again = jobs.claim("w", 1, reports=[Release(claimed.stage_run_id, 1, "w")], held=held)
    assert [(each.job_id, each.attempt) for each in again.claims] == [(job_id, 2)]
    assert jobs.report([done(again.claims[0], "w")])[0].won


def test_a_suspect_whose_claim_was_lost_comes_alone_again(database_url: str) -> None:
    database = ForgetfulDatabase(database_url)
    jobs = Jobs(database)
    [suspect] = submit(jobs)
    lose(jobs)
    submit(jobs, 3)
    register(jobs, "w")
    claims = jobs.claim("w", 100)
    assert [(each.job_id, each.attempt, each.alone) for each in claims.claims] == [(suspect, 3, True)]
    database.close()


# plans

FILL = """
INSERT INTO stage_runs (job_id, position, pipeline, stage, pipeline_digest, queue, turn, inputs, has_successors, state,
                        attempt, apart, is_high, due, payload_gone)
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 40)
SELECT job_id, n, pipeline, stage, pipeline_digest, queue, turn + 1000 * n, inputs, has_successors, state, attempt,
       CASE WHEN n = 7 AND turn % 3 = 0 THEN 'other' END, n = 9, due, payload_gone
FROM stage_runs, numbers
"""
PARAMETERS = {
    "worker": "w",
    "at_most": "8",
    "suspect": "7",
    "ids": "[1, 2, 3]",
    "keys": '["default"]',
    "pipeline": "echo",
    "stage": "first",
    "pipeline_digest": "d",
    "tenant": "few",
    "turn": "1",
    "job_id": "a",
    "rows": '[{"job_id": "a", "turn": 1}]',
}
OF_CLAIM = (
    *("lease_and_suspect", "claim_next", "claim_next_high", "claim_suspect", "set_suspect_apart"),
    *("running_of_worker", "start_unless_locked", "claimed_stage_runs", "claimed_jobs", "claimed_payloads"),
    *("note_turn", "note_turn_of_line"),
)
OF_QUOTA = (
    *("count_let_in", "let_in", "queue_if_held", "stages_of_jobs", "set_turn", "turns_of", "quota_turns"),
    "weights_and_limits",
)
HOT = {
    claim_module: OF_CLAIM,
    take_turns: ("lock_turns",),
    virtual_times: ("first_turn", "highest_turn"),
    quota: OF_QUOTA,
    transition: ("stage_runs_of_jobs",),
}
IN_ORDER = ("lease_and_suspect", "claim_next", "claim_next_high", "note_turn_of_line", "first_turn", "let_in")


def plan(tx: Connection, name: str, statement: Statement) -> str:
    """The database's plan for a statement; PostgreSQL's is the one that it would keep for any parameters."""
    compiled = statement.compiled(tx.dialect)
    if tx.dialect.name == "sqlite":
        rows = tx.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {compiled.text}", tuple(PARAMETERS[each] for each in compiled.parameters)
        )
    else:
        names: dict[str, int] = {}  # as psycopg numbers them
        numbered = re.sub(r"%\((\w+)\)s", lambda at: f"${names.setdefault(at[1], len(names) + 1)}", compiled.text)
        tx.exec_driver_sql(f"PREPARE {name} AS {numbered}")
        values = ", ".join(f"'{PARAMETERS[each]}'" for each in names)
        rows = tx.exec_driver_sql(f"EXPLAIN EXECUTE {name}({values})")
    return "\n".join(row[-1] for row in rows)


def plans_of(database: Database) -> dict[str, str]:
    with database.begin() as tx:
        if database.dialect == "postgresql":
            tx.execute(text("SET LOCAL plan_cache_mode = force_generic_plan"))
        return {
            name: plan(tx, name, Statements(str(module.__file__))[name])
            for module, names in HOT.items()
            for name in names
        }


def test_who_claims_on_an_empty_table_keeps_no_plan_that_reads_a_long_line_later(
    jobs: Jobs, database: Database
) -> None:
    plans = plans_of(database)
    for name in ("lease_and_suspect", "claim_next", "claim_next_high"):
        assert "ix_stage_runs_apart" in plans[name], plans[name]


@pytest.mark.parametrize("statistics", [False, True])
def test_no_hot_statement_sorts_or_scans_what_waits(jobs: Jobs, database: Database, statistics: bool) -> None:
    """Also while the statistics are those of an empty table."""
    register(jobs, "w")
    submit(jobs, 250)
    with database.begin() as tx:
        tx.execute(text(FILL))
    if statistics:
        by_owner(database, "ANALYZE")
    plans = plans_of(database)
    scans = re.compile("SCAN (stage_runs|run|jobs?|quota)|Seq Scan")
    assert {name: found for name, found in plans.items() if scans.search(found)} == {}
    for name in IN_ORDER:
        assert not re.search("Sort|TEMP B-TREE|Bitmap Index Scan on ix_stage_runs", plans[name]), plans[name]
    assert "ix_stage_runs_queued" in plans["claim_next"]
    assert "ix_stage_runs_high" in plans["claim_next_high"]
    for name in ("claim_next", "claim_next_high"):
        assert "ix_stage_runs_apart" in plans[name]
    assert "ix_stage_runs_apart" in plans["lease_and_suspect"]
    assert "ix_stage_runs_running" in plans["running_of_worker"]
