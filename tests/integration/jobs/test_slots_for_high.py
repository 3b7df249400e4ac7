"""Claims for slots that are kept for high jobs, the doorbells of these, and what others are told of the kept slots."""

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import OutOfMemory
from omni_jobs.jobs import Claims, Jobs
from omni_jobs.jobs.read.estimates import SOON
from omni_jobs.priority import Priority
from omni_jobs.tenants.tenant_store import Tenants
from omni_jobs.views import EstimateView
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    done,
    fail,
    failed,
    new_job,
    pass_time,
    register,
    register_each,
    release,
    submit_one,
)

ONLY: dict[str, list[str]] = {"first": []}


def submit(jobs: Jobs, priority: Priority, count: int = 1, **changes: object) -> list[str]:
    """Submit so many jobs of one stage, and return their ids."""
    return [submit_one(jobs, new_job(ONLY, priority=priority, **changes)).job_id for _ in range(count)]


def job_ids(claims: Claims) -> list[str]:
    return [each.job_id for each in claims.claims]


def test_only_high_jobs_are_claimed_for_kept_slots_by_their_turns(jobs: Jobs) -> None:
    register(jobs, "w")
    submit(jobs, Priority.LOW, 3)
    submit(jobs, Priority.NORMAL, 3)
    high = submit(jobs, Priority.HIGH, 3, tenant="a") + submit(jobs, Priority.HIGH, 2, tenant="b")
    in_order = [high[0], high[3], high[1], high[4], high[2]]
    first = jobs.claim("w", 0, of_high=2)
    assert (job_ids(first), first.more, first.more_high) == (in_order[:2], False, True)
    assert all(each.is_high for each in first.claims)
    last = jobs.claim("w", 0, of_high=4, is_idle=False)
    assert (job_ids(last), last.more, last.more_high) == (in_order[2:], False, False)
    assert job_ids(jobs.claim("w", 0, of_high=4, is_idle=False)) == []


def test_a_claim_for_any_jobs_takes_further_high_ones_for_the_kept_slots(jobs: Jobs) -> None:
    register(jobs, "w")
    normal = submit(jobs, Priority.NORMAL, 4)
    high = submit(jobs, Priority.HIGH, 5)
    claims = jobs.claim("w", 2, of_high=2)
    assert job_ids(claims) == [*normal[:2], *high[:2]], "the first two in order, and two further high ones"
    assert [each.is_high for each in claims.claims] == [False, False, True, True]
    assert (claims.more, claims.more_high) == (True, True)
    rest = jobs.claim("w", 100, of_high=1, is_idle=False)
    assert set(job_ids(rest)) == {*normal[2:], *high[2:]}
    assert (rest.more, rest.more_high) == (False, False)


def test_each_stage_of_a_high_job_is_claimed_for_kept_slots_and_rings_for_them(jobs: Jobs) -> None:
    register_each(jobs, DIAMOND)
    submitted = submit_one(jobs, new_job(DIAMOND, priority=Priority.HIGH))
    submit_one(jobs, new_job(DIAMOND))
    assert submitted.queues == {"echo.a.high"}
    rung: set[str] = set()
    for stage in DIAMOND:
        [claimed] = jobs.claim(stage, 0, of_high=9).claims
        assert (claimed.job_id, claimed.stage) == (submitted.job_id, stage)
        [outcome] = jobs.report([done(claimed, stage)])
        rung.update(outcome.queues)
    assert rung == {"echo.b.high", "echo.c.high", "echo.d.high"}


def test_what_a_retry_a_release_or_a_loss_queues_again_stays_high(jobs: Jobs, database: Database) -> None:
    [job_id] = submit(jobs, Priority.HIGH)
    register(jobs, "w", slot="slot", lease_s=10_000)
    [claimed] = jobs.claim("w", 0, of_high=1).claims
    assert release(jobs, [(claimed.stage_run_id, 1)], "w") == {"echo.first.high"}
    [claimed] = jobs.claim("w", 0, of_high=1).claims
    fail(jobs, failed(claimed, "w", OutOfMemory()))
    assert job_ids(jobs.claim("w", 0, of_high=1)) == [], "it is not due"
    pass_time(database, 100)
    assert job_ids(jobs.claim("w", 0, of_high=1)) == [job_id]
    assert register(jobs, "w2", slot="slot") == {"echo.first.high"}
    assert job_ids(jobs.claim("w2", 0, of_high=1)) == [job_id]
    jobs.cancel(job_id)
    jobs.retire_worker("w2")
    assert jobs.retry(job_id) == {"echo.first.high"}
    register(jobs, "w3")
    assert job_ids(jobs.claim("w3", 0, of_high=1)) == [job_id]


def test_a_held_high_job_waits_for_its_quota(jobs: Jobs, database: Database) -> None:
    Tenants(database).create("few", limits={"running_jobs": 1})
    register(jobs, "w")
    submit(jobs, Priority.LOW, tenant="few")
    [high] = submit(jobs, Priority.HIGH, tenant="few")
    assert job_ids(jobs.claim("w", 0, of_high=1)) == []
    [claimed] = claim(jobs, "w")
    [outcome] = jobs.report([done(claimed, "w")])
    assert outcome.queues == {"echo.first.high"}
    assert job_ids(jobs.claim("w", 0, of_high=1)) == [high]


@pytest.mark.parametrize("priority", [Priority.HIGH, Priority.LOW])
def test_a_suspect_is_claimed_alone_whatever_slots_are_free(jobs: Jobs, priority: Priority) -> None:
    [suspect] = submit(jobs, priority)
    for n in range(2):
        register(jobs, f"lost-{n}", slot="dies")
        assert claim(jobs, f"lost-{n}")
    register(jobs, "idler", "none", slot="dies")
    high = submit(jobs, Priority.HIGH, 2)
    register(jobs, "w")
    assert jobs.claim("w", 0, of_high=2, is_idle=False) == Claims((), suspect_waits=True)
    claims = jobs.claim("w", 0, of_high=2)
    assert (job_ids(claims), claims.more, claims.more_high) == ([suspect], True, True)
    register(jobs, "other")
    assert job_ids(jobs.claim("other", 0, of_high=2)) == high


def test_what_is_claimed_for_kept_slots_moves_the_virtual_time_no_further_than_the_line(
    jobs: Jobs, database: Database
) -> None:
    def claimed_turn() -> int:
        with database.begin() as tx:
            turn: int = tx.execute(text("SELECT turn FROM workers")).scalar_one()
        return turn

    def turns_of(job_ids: list[str]) -> list[int]:
        with database.begin() as tx:
            rows = dict(tx.execute(text("SELECT job_id, turn FROM stage_runs")).all())
        return [rows[job_id] for job_id in job_ids]

    Tenants(database).create("few", limits={"running_jobs": 1})
    register(jobs, "w")
    held = submit(jobs, Priority.NORMAL, 4, tenant="few")
    others = submit(jobs, Priority.NORMAL, 3, tenant="others")
    high = submit(jobs, Priority.HIGH, 30, tenant="hasty")
    [first] = claim(jobs, "w", 1)
    assert first.job_id == held[0]
    assert job_ids(jobs.claim("w", 0, of_high=25)) == high[:25]
    assert claimed_turn() == turns_of(others)[0] < turns_of(high)[24], "where the line has got to"
    jobs.report([done(first, "w")])
    assert turns_of(held)[1] < turns_of(others)[2], "a job that is let in comes into the line, not behind it"
    assert len(jobs.claim("w", 100, of_high=9).claims) == 9
    assert claimed_turn() == turns_of(high)[-1], "nothing waits before it"


# estimates


def estimate(jobs: Jobs, job_id: str) -> EstimateView | None:
    waiting = jobs.get(job_id).waiting
    assert waiting is not None
    return waiting.estimate


def soon() -> tuple[float, float]:
    return SOON.low_s, SOON.high_s


def told(jobs: Jobs, job_id: str) -> tuple[float, float]:
    found = estimate(jobs, job_id)
    assert found is not None
    return found.low_s, found.high_s


def test_the_estimate_of_a_low_job_counts_no_kept_slots(jobs: Jobs) -> None:
    register(jobs, "w", slots=4, kept=3)
    running, *others = submit(jobs, Priority.LOW, 10)
    jobs.renew("w", 60, run_s=3.0)
    assert told(jobs, running) == soon()
    assert told(jobs, others[0]) != soon(), "one slot is not kept, and another stage run comes first"
    assert job_ids(jobs.claim("w", 1, of_high=3)) == [running]
    low_s, high_s = told(jobs, others[-1])
    assert low_s < 27.0 < high_s, "nine stage runs of 3 s, one after the other"
    [high] = submit(jobs, Priority.HIGH)
    assert told(jobs, high) == soon(), "three slots are kept for it"


def test_a_high_job_waits_for_kept_slots_where_these_come_first(jobs: Jobs) -> None:
    register(jobs, "w", slots=4, kept=2)
    jobs.renew("w", 60, run_s=4.0)
    submit(jobs, Priority.NORMAL, 2)
    high = submit(jobs, Priority.HIGH, 10)
    assert len(jobs.claim("w", 2, of_high=2).claims) == 4
    low_s, high_s = told(jobs, high[-1])
    assert low_s < 16.0 < high_s, "about eight before it, at two slots of 4 s"
    [low] = submit(jobs, Priority.LOW)
    assert told(jobs, low)[1] > high_s
