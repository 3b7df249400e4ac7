"""Jobs are brought to the front of their tenant's line, on both databases, and no other tenant's wait for it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, NotFound
from omni_jobs.jobs import Jobs
from omni_jobs.jobs.order import advance as advance_module
from omni_jobs.priority import Priority
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import CHAIN, claim, done, new_job, register, register_each, submit_one

ONLY: dict[str, list[str]] = {"first": []}


def submit(jobs: Jobs, count: int, **changes: object) -> list[str]:
    return [submit_one(jobs, new_job(**({"graph": ONLY} | changes))).job_id for _ in range(count)]


def turns(database: Database) -> list[tuple[str, int]]:
    with database.begin() as tx:
        rows = set(tx.execute(text("SELECT job_id, turn FROM stage_runs")))
    return sorted((str(job_id), int(turn)) for job_id, turn in rows)


def claimed_one_by_one(jobs: Jobs, count: int, stage: str = "first") -> list[str]:
    return [claim(jobs, stage, 1)[0].job_id for _ in range(count)]


def test_advanced_jobs_are_claimed_first_and_the_others_in_their_order(jobs: Jobs) -> None:
    ids = submit(jobs, 5)
    register(jobs, "first", slots=8)
    assert jobs.advance_all([ids[4], ids[2]]) == {ids[2], ids[4]}
    assert claimed_one_by_one(jobs, 5) == [ids[2], ids[4], ids[0], ids[1], ids[3]]


def test_turns_change_hands_and_other_tenants_are_where_they_were(jobs: Jobs, database: Database) -> None:
    submit(jobs, 3, tenant="other")
    own = submit(jobs, 3, tenant="own")
    high = submit(jobs, 2, tenant="own", priority=Priority.HIGH)
    submit(jobs, 2, tenant="own", graph=CHAIN)
    before = dict(turns(database))
    assert jobs.advance_all([own[2]]) == {own[2]}
    after = dict(turns(database))
    assert sorted(after.values()) == sorted(before.values())
    changed = {job_id for job_id in before if before[job_id] != after[job_id]}
    assert changed == set(own)
    assert after[own[2]] == before[own[0]]
    assert {after[each] for each in high} == {before[each] for each in high}
    assert jobs.advance_all([own[2]]) == {own[2]}
    assert dict(turns(database)) == after, "who stands there stays"


def test_what_has_begun_or_ended_is_left(jobs: Jobs, database: Database) -> None:
    ids = submit(jobs, 4, graph=CHAIN)
    register_each(jobs)
    assert claim(jobs, "first", 1)[0].job_id == ids[0]
    jobs.cancel(ids[1])
    before = turns(database)
    assert jobs.advance_all([ids[0], ids[1], "job-none"]) == set()
    assert turns(database) == before
    with pytest.raises(Conflict, match="begun"):
        jobs.advance(ids[0])
    with pytest.raises(NotFound):
        jobs.advance(ids[2], "other")
    jobs.advance(ids[3], by="key-1")
    assert [(each.actor, each.action, each.target) for each in jobs.acts()] == [("key-1", "advance", ids[3])]
    assert claim(jobs, "first", 1)[0].job_id == ids[3]


def test_held_jobs_are_let_in_in_the_new_order(jobs: Jobs, database: Database) -> None:
    Tenants(database).create("few", limits={"running_jobs": 1})
    ids = submit(jobs, 4, tenant="few")
    assert jobs.advance_all([ids[3]]) == {ids[3]}
    register(jobs, "first", slots=8)
    order = []
    for _ in range(4):
        [claimed] = claim(jobs, "first")
        order.append(claimed.job_id)
        jobs.report([done(claimed, "first")])
    assert order == [ids[0], ids[3], ids[1], ids[2]]


def test_a_job_behind_very_many_stays(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advance_module, "MOST_BEFORE", 3)
    ids = submit(jobs, 5)
    assert jobs.advance_all(ids[2:4]) == {ids[2]}
    with pytest.raises(Conflict, match="before it"):
        jobs.advance(ids[4])


def test_those_who_advance_submit_cancel_and_claim_at_once_meet_in_no_deadlock(
    jobs: Jobs, database: Database, database_url: str
) -> None:
    ids = submit(jobs, 30, graph=CHAIN, tenant="few")
    register_each(jobs, slots=50)
    others = [Jobs(Database(database_url)) for _ in range(4)]

    def act(number: int) -> None:
        its = others[number % 4]
        some = ids[number % 7 :: 3]
        match number % 4:
            case 0:
                its.advance_all(some)
            case 1:
                its.advance_all(some[::-1])
            case 2:
                submit(its, 3, graph=CHAIN, tenant="few")
            case _:
                its.cancel_all(some[:2])
                claim(its, "first", 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, range(40)))
    for each in others:
        each._db.close()
    rows = turns(database)
    assert len({job_id for job_id, _ in rows}) == len(rows), "all stage runs of a job have one turn"
    if database.dialect == "postgresql":
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        with database.begin() as tx:
            assert tx.execute(query).scalar_one() == 0
