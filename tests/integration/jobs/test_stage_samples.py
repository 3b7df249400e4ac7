"""Samples of the stages: each end is in one, whatever becomes of its worker, and however many samplers there are."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import InvalidRequest
from omni_jobs.jobs import COARSE_S, FINE_S, LONG_S, Jobs, StageName, StageSample
from omni_jobs.jobs.crew import sample as crew_sample
from omni_jobs.metrics.stage_stats import Histogram, StageStats, WorkerStats
from tests.integration.job_steps import claim, new_job, pass_time, register, submit_one

FIRST = StageName("echo", "first")
FOREVER = 1e12


def counted(ends: int, *, lost: int = 0) -> dict[str, object]:
    """What a worker has counted since its start: so many ends, each after half a second."""
    ended = {"completed": ends} | ({"lost": lost} if lost else {})
    return WorkerStats(StageStats({"run": Histogram({"0.5": ends}, ends / 2)}, ended)).to_json()


def sample(jobs: Jobs) -> bool:
    """As if ten seconds had gone by since the last sample; whether one was taken."""
    with jobs._db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 10"))
        for change in ("10 - at", "-at"):  # so that no row meets another one's key on its way
            tx.execute(text(f"UPDATE stage_samples SET at = {change} WHERE step_s = 10"))
    return jobs.sample() is not None


def fine(jobs: Jobs) -> Sequence[StageSample]:
    return [each for each in jobs.stage_samples(FINE_S, 0, FOREVER) if each.name == FIRST]


def ends(samples: Sequence[StageSample]) -> list[int]:
    return [each.stats.ends for each in samples]


@pytest.fixture
def begun(jobs: Jobs) -> Jobs:
    """A first sample is there."""
    assert jobs.sample() is not None
    return jobs


def test_a_sample_has_what_came_since_the_one_before_and_how_the_stage_stands(begun: Jobs) -> None:
    register(begun, "w", slots=4)
    for _ in range(3):
        submit_one(begun, new_job())
    claim(begun, "w", 1)
    begun.renew("w", 60, stats=counted(3))
    assert sample(begun)
    begun.renew("w", 60, stats=counted(5, lost=1))
    assert sample(begun)
    assert sample(begun)
    samples = fine(begun)
    assert ends(samples) == [3, 3, 0]
    assert [each.stats.ended for each in samples] == [{"completed": 3}, {"completed": 2, "lost": 1}, {}]
    assert samples[1].stats.seconds["run"] == Histogram({"0.5": 2}, 1.0)
    standing = samples[-1].standing
    assert (standing.queued, standing.running, standing.workers, standing.slots) == (2, 1, 1, 4)
    assert all(9 < each.span_s < 60 for each in samples)
    second = [each for each in begun.stage_samples(FINE_S, 0, FOREVER) if each.name.stage == "second"]
    assert second[-1].standing.pending == 3


def test_within_ten_seconds_there_is_one_sample(begun: Jobs) -> None:
    register(begun, "w")
    begun.renew("w", 60, stats=counted(3))
    assert sample(begun)
    begun.renew("w", 60, stats=counted(7))
    while (taken := begun.sample()) is not None:  # the next ten seconds had begun meanwhile
        pass
    assert taken is None
    assert sum(ends(fine(begun))) in (3, 7)


def test_of_many_samplers_at_once_one_takes_the_sample(begun: Jobs, database_url: str) -> None:
    register(begun, "w")
    for round_ in range(1, 4):
        begun.renew("w", 60, stats=counted(100 * round_))
        with begun._db.begin() as tx:
            tx.execute(text("UPDATE samplings SET at = at - 10"))
        databases = [Database(database_url) for _ in range(6)]
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda database: Jobs(database).sample(), databases))
        for database in databases:
            database.close()
        assert sum(ends(fine(begun))) == 100 * round_


def test_a_sampler_that_saw_it_due_before_another_took_the_sample_takes_none(begun: Jobs) -> None:
    def taken_twice() -> list[bool]:
        with begun._db.begin() as tx:
            tx.execute(text("UPDATE samplings SET at = at - 10"))
        return [begun._db.run(partial(crew_sample.sample, standing={})) for _ in range(2)]

    assert [True, False] in (taken_twice(), taken_twice())  # the next ten seconds may begin in the middle of one


@pytest.mark.parametrize("end", ["retires", "is lost", "is replaced"])
def test_what_a_worker_counted_after_the_last_sample_outlives_it(begun: Jobs, end: str) -> None:
    register(begun, "w", slot="slot", lease_s=10)
    begun.renew("w", 10, stats=counted(3))
    assert sample(begun)
    begun.renew("w", 10, stats=counted(8))
    if end == "retires":
        begun.retire_worker("w", stats=counted(9))
        begun.retire_worker("w", stats=counted(9))  # the answer of the first was lost
    elif end == "is lost":
        pass_time(begun._db, 20)
        begun.rescue()
        assert begun.workers() == []
    else:
        register(begun, "next", slot="slot")
        begun.renew("next", 10, stats=counted(1))
    assert sample(begun)
    assert sample(begun)
    last = {"retires": 6, "is lost": 5, "is replaced": 5 + 1}[end]
    assert sum(ends(fine(begun))) == 3 + last
    with begun._db.begin() as tx:
        kept = tx.execute(text("SELECT count(*) FROM sampled_workers WHERE final IS NOT NULL")).scalar_one()
    assert kept == 0


def test_counts_that_fall_began_anew(begun: Jobs) -> None:
    register(begun, "w")
    for number in (5, 2):
        begun.renew("w", 60, stats=counted(number))
        assert sample(begun)
    assert ends(fine(begun)) == [5, 2]


def test_what_was_counted_before_anybody_sampled_is_in_no_sample(jobs: Jobs) -> None:
    register(jobs, "w")
    jobs.renew("w", 60, stats=counted(1_000_000))
    assert jobs.sample() is not None
    jobs.renew("w", 60, stats=counted(1_000_004))
    assert sample(jobs)
    assert ends(fine(jobs)) == [0, 4]


def test_after_a_time_without_a_sampler_the_span_says_how_long_the_counts_took(begun: Jobs) -> None:
    register(begun, "w")
    begun.renew("w", 60, stats=counted(600))
    with begun._db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 600"))
    assert sample(begun)
    [newest] = fine(begun)
    assert newest.stats.ends == 600
    assert 600 < newest.span_s < 700


def test_a_clock_that_was_set_back_stops_no_sampler(begun: Jobs) -> None:
    register(begun, "w")
    begun.renew("w", 60, stats=counted(2))
    with begun._db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at + 86400"))
    assert begun.sample() is not None
    assert [(each.stats.ends, each.span_s) for each in fine(begun)] == [(2, FINE_S)]


@pytest.mark.parametrize("step_s", [COARSE_S, LONG_S])
def test_a_longer_time_is_the_sum_of_its_samples_and_old_samples_go(begun: Jobs, step_s: Literal[300, 7200]) -> None:
    register(begun, "w", slots=2)
    for number in (10, 30, 60):
        begun.renew("w", 60, stats=counted(number))
        assert sample(begun)
    coarse = begun.stage_samples(step_s, 0, FOREVER, pipeline="echo", stage="first")
    assert sum(ends(coarse)) == 60
    assert all(each.at % step_s == 0 for each in coarse)
    whole = coarse[0] if len(coarse) == 1 else coarse[0].plus(coarse[1])
    assert whole.standing.slots == pytest.approx(2)
    assert whole.stats.seconds["run"] == Histogram({"0.5": 60}, 30.0)
    with begun._db.begin() as tx:
        tx.execute(text("UPDATE stage_samples SET at = at - 86400"))
    assert sample(begun)
    assert len(fine(begun)) == 1, "those of 10 s are kept for a day"
    assert sum(ends(begun.stage_samples(step_s, 0, FOREVER, stage="first"))) == 60
    with begun._db.begin() as tx:
        tx.execute(text("UPDATE stage_samples SET at = at - 31 * 86400"))
    assert sample(begun)
    assert ends(begun.stage_samples(step_s, 0, FOREVER, stage="first")) == [0]


def test_it_is_known_how_long_ago_a_sample_was_taken(jobs: Jobs) -> None:
    assert jobs.sampled_s_ago() is None
    assert jobs.sample() is not None
    with jobs._db.begin() as tx:
        tx.execute(text("UPDATE samplings SET at = at - 600"))
    assert 600 <= (jobs.sampled_s_ago() or 0) < 700


def test_a_worker_that_left_no_last_counts_is_forgotten(begun: Jobs) -> None:
    register(begun, "w")
    begun.renew("w", 60, stats=counted(1))
    assert sample(begun)
    with begun._db.begin() as tx:
        tx.execute(text("DELETE FROM workers"))  # an older build's rescuer notes nothing
        tx.execute(text("UPDATE sampled_workers SET at = at - 90000"))
    assert sample(begun)
    with begun._db.begin() as tx:
        assert tx.execute(text("SELECT count(*) FROM sampled_workers")).scalar_one() == 0


@pytest.mark.parametrize("field", ["pipeline", "stage"])
def test_a_name_that_no_stage_can_have_is_refused(jobs: Jobs, field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        jobs.stage_samples(FINE_S, 0, FOREVER, **{field: "a\0b"})  # type: ignore[arg-type]
    assert raised.value.field == field
