"""Turns in SQL: what tenants were given is kept, whoever submits; the virtual time is that of a pipeline's claims."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import ModelError
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Jobs, NewJob, NewWorker
from omni_jobs.jobs.order.turns import LAST_TURN, UNIT
from omni_jobs.priority import Priority
from tests.integration.job_steps import (
    CHAIN,
    DIAMOND,
    claim,
    complete_each,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    register_each,
    submit_one,
)

ONLY: dict[str, list[str]] = {"first": []}


def turns(database: Database) -> dict[str, int]:
    """The jobs' turns, which all their stage runs have."""
    with database.begin() as tx:
        rows = set(tx.execute(text("SELECT job_id, turn FROM stage_runs")))
    assert len(rows) == len({job_id for job_id, _ in rows})
    return dict(rows)


def submit(jobs: Jobs, database: Database, job: NewJob | None = None, **changes: object) -> int:
    """Submit a job, and return its turn in units."""
    submitted = submit_one(jobs, job or new_job(**({"graph": ONLY} | changes)))
    turn, rest = divmod(turns(database)[submitted.job_id], UNIT)
    assert rest == 0
    return turn


def test_servers_that_submit_at_once_give_each_turn_of_a_tenant_once(database: Database, database_url: str) -> None:
    """Each has its own connections. They share two tenants and two pipelines, in batches of any order."""
    other = Database(database_url)

    def submit_some(number: int) -> None:
        jobs = Jobs((database, other)[number % 2])
        tenants = ("a", "b") if number % 3 else ("b", "a")
        jobs.submit_all(
            [
                new_job(ONLY, tenant=t, pipeline=PipelineId(p, "d"))
                for t in tenants
                for p in ("echo", "else")[:: (-1) ** number]
            ]
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(submit_some, range(24)))
    other.close()
    with database.begin() as tx:
        rows = tx.execute(text("SELECT s.pipeline, j.tenant, s.turn FROM stage_runs s JOIN jobs j ON j.id = s.job_id"))
        given = Counter(tuple(row) for row in rows)
        last = {
            (row.pipeline, row.tenant): row.normal
            for row in tx.execute(text("SELECT pipeline, tenant, normal FROM turns"))
        }
    assert set(given.values()) == {1}
    assert len(last) == 4
    for (pipeline, tenant), normal in last.items():
        assert normal == max(turn for its, whose, turn in given if (its, whose) == (pipeline, tenant))
    if database.dialect == "postgresql":
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert database.read(lambda tx: tx.execute(query).scalar_one()) == 0


def test_the_turns_of_all_stages_are_the_jobs(jobs: Jobs, database: Database) -> None:
    jobs.submit_all([new_job(DIAMOND) for _ in range(3)])
    register_each(jobs, DIAMOND)
    before = turns(database)
    assert sorted(before.values()) == [UNIT, 2 * UNIT, 3 * UNIT]
    complete_each(jobs, DIAMOND)
    assert turns(database) == before


def test_the_virtual_time_is_the_highest_turn_that_a_worker_claimed(jobs: Jobs, database: Database) -> None:
    for _ in range(20):
        submit_one(jobs, new_job(ONLY, tenant="busy"))
    register(jobs, "w1")
    register(jobs, "w2")
    assert len(claim(jobs, "w1", 5)) == 5
    assert submit(jobs, database, tenant="b") == 6
    assert len(claim(jobs, "w2", 3)) == 3, "6 and 7 of the busy one, and b's"
    assert submit(jobs, database, tenant="c") == 8
    assert submit(jobs, database, tenant="b") == 8
    assert submit(jobs, database, tenant="busy") == 21


def test_where_a_later_stage_is_slow_a_newcomer_competes_there(jobs: Jobs, database: Database) -> None:
    for _ in range(20):
        submit_one(jobs, new_job(CHAIN, tenant="busy"))
    register(jobs, "w", "first")
    complete_each(jobs, ["w"])
    register(jobs, "v", "second")
    assert len(claim(jobs, "v", 4)) == 4
    assert submit(jobs, database, graph=CHAIN, tenant="b") == 6, "behind the line of the second stage"
    complete_each(jobs, ["w"])
    assert [each.job_id for each in claim(jobs, "v", 3)][-1] == jobs.list(limit=1).jobs[0].id


def test_without_workers_newcomers_come_next_but_one(jobs: Jobs, database: Database) -> None:
    """The virtual time is then where the line begins, or behind all turns if nothing waits."""
    for _ in range(10):
        submit_one(jobs, new_job(ONLY, tenant="busy"))
    register(jobs, "w", lease_s=10)
    claims = claim(jobs, "w", 4)
    jobs.report([done(each, "w") for each in claims])
    assert jobs.retire_worker("w") == set()
    assert submit(jobs, database, tenant="b") == 6, "behind busy's fifth"
    assert submit(jobs, database, tenant="b") == 7
    register(jobs, "w2")
    assert submit(jobs, database, tenant="c") == 6, "it has claimed nothing yet"
    complete_each(jobs, ["w2"])
    jobs.retire_worker("w2")
    assert submit(jobs, database, tenant="d") == 11
    assert submit(jobs, database, tenant="b") == 12


def test_with_low_jobs_alone_the_virtual_time_is_behind_them(jobs: Jobs, database: Database) -> None:
    register(jobs, "w")
    for _ in range(5):
        submit(jobs, database, tenant="a", priority=Priority.LOW)
    complete_each(jobs, ["w"])
    jobs.retire_worker("w")
    assert submit(jobs, database, tenant="b") == 41
    assert submit(jobs, database, tenant="a", priority=Priority.LOW) == 49


def test_a_worker_that_takes_over_a_slot_knows_what_was_claimed_before(jobs: Jobs, database: Database) -> None:
    for _ in range(3):
        submit_one(jobs, new_job(ONLY, tenant="busy"))
    register(jobs, "w1", slot="slot")
    complete_each(jobs, ["w1"])
    register(jobs, "w2", slot="slot")
    assert submit(jobs, database, tenant="b") == 4
    elsewhere = NewWorker("w3", "slot", StageId(PipelineId("else", "d"), "first"), "host", 1, 4, "1")
    jobs.register_worker(elsewhere, 60.0, instead_of=jobs.slot_holder("slot"))
    assert submit(jobs, database, pipeline=PipelineId("else", "d")) == 1, "another pipeline's turns say nothing"


def test_a_retry_has_a_new_turn_and_what_is_rescued_keeps_its_own(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", lease_s=10)
    first, second = (submit_one(jobs, new_job(ONLY)).job_id for _ in range(2))
    claims = claim(jobs, "w")
    fail(jobs, failed(claims[0], "w", ModelError()))
    third = submit_one(jobs, new_job(ONLY)).job_id
    jobs.retry(first)
    assert turns(database) == {second: 2 * UNIT, third: 3 * UNIT, first: 4 * UNIT}
    pass_time(database, 10)
    assert jobs.rescue().freed == 1
    register(jobs, "w2")
    assert [each.job_id for each in claim(jobs, "w2")] == [second, third, first]


def test_turns_at_the_end_of_the_range_are_shared_and_go_by_age(jobs: Jobs, database: Database) -> None:
    register(jobs, "w")
    submit_one(jobs, new_job(ONLY))
    with database.begin() as tx:
        tx.execute(text("UPDATE turns SET high = :t, normal = :t, low = :t"), {"t": LAST_TURN - 2 * UNIT})
    wishes = [Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.LOW, Priority.NORMAL]
    ids = [submit_one(jobs, new_job(ONLY, priority=priority)).job_id for priority in wishes]
    found = [turns(database)[job_id] for job_id in ids]
    assert found == [LAST_TURN, LAST_TURN - UNIT, LAST_TURN - UNIT, LAST_TURN, LAST_TURN]
    assert [each.job_id for each in claim(jobs, "w")][1:] == [ids[each] for each in (1, 2, 0, 3, 4)]
    last = submit_one(jobs, new_job(ONLY)).job_id
    assert turns(database)[last] == LAST_TURN


@pytest.mark.parametrize("weight", [0.001, 1000.0])
def test_a_tenants_weight_is_read_with_each_submit(jobs: Jobs, database: Database, weight: float) -> None:
    submit_one(jobs, new_job(ONLY, tenant="t"))
    with database.begin() as tx:
        tx.execute(
            text("INSERT INTO tenants (name, weight, created_at) VALUES ('t', :weight, 1.0)"), {"weight": weight}
        )
    job_id = submit_one(jobs, new_job(ONLY, tenant="t")).job_id
    assert turns(database)[job_id] == UNIT + round(UNIT / weight)


def test_hosts_whose_clocks_lie_an_hour_apart_take_the_same_turns(
    jobs: Jobs, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All times of turns, leases and estimates are the database's; only the ids of jobs tell the submitter's clock."""
    times = (time.time, time.time_ns)
    submitted = []
    for number, hours in enumerate((1, -1, 0, -1, 1)):
        monkeypatch.setattr(time, "time", lambda shift=hours * 3600: times[0]() + shift)
        monkeypatch.setattr(time, "time_ns", lambda shift=hours * 3600 * 10**9: times[1]() + shift)
        submitted.append(submit_one(jobs, new_job(ONLY, tenant="ab"[number % 2])))
        register(jobs, f"w{number}", slots=1)  # a lease of a minute, which no clock of a host ends
    assert sorted(each.job_id for each in submitted) != [each.job_id for each in submitted]
    given = [turns(database)[each.job_id] // UNIT for each in submitted]
    assert given == [1, 2, 2, 3, 3]
    waiting = [jobs.get(each.job_id).waiting for each in submitted]
    assert [each is not None and each.position for each in waiting] == [0, 0, 1, 1, 2]
    assert all(each is not None and each.reason == "turn" for each in waiting)
    claimed = [each.job_id for number in range(5) for each in claim(jobs, f"w{number}", 1)]
    assert claimed == [each.job_id for each in submitted]
    created = [each.created_at for each in submitted if each.created_at is not None]
    assert created == sorted(created)
    assert created[-1] - created[0] < 60
