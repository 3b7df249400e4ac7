"""The tally of a stream of numbered jobs, on each database: what it counts as ended, lost and doubled."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import WorkerLost
from omni_jobs.jobs import NUMBER, Jobs, Tally
from omni_jobs.jobs.read.tally import LOST_AFTER_S
from omni_jobs.states import JobState
from tests.integration.job_steps import claim, complete_each, fail, failed, new_job, register, register_each, submit_one

STREAM = "1700000000-0123abcd"


def submitted(jobs: Jobs, *numbers: int, stream: str = STREAM, tenant: str = "default") -> list[str]:
    """Submit jobs of a stream, and return their ids."""
    labels = [{"stream": stream, NUMBER: str(number)} for number in numbers]
    return [submit_one(jobs, new_job(metadata=each, tenant=tenant)).job_id for each in labels]


def counted(tally: Tally) -> tuple[int, int, int, int, int]:
    """Accepted, ended, lost, doubled, and attempts that were cut off."""
    return tally.accepted, tally.ended, tally.lost, tally.doubled, tally.attempts


def tallied(jobs: Jobs, tenant: str | None = None) -> tuple[int, int, int, int, int]:
    return counted(jobs.tally("stream", STREAM, tenant))


def test_jobs_end_once_whatever_became_of_their_attempts(jobs: Jobs) -> None:
    assert tallied(jobs) == (0, 0, 0, 0, 0)
    ids = submitted(jobs, 1, 2, 3)
    submitted(jobs, 1, stream="another")
    register(jobs, "w")
    for lost in claim(jobs, "w"):
        fail(jobs, failed(lost, "w", WorkerLost("worker w was lost while it ran this")))
    assert tallied(jobs) == (3, 0, 0, 0, 3)
    register_each(jobs)
    complete_each(jobs)
    assert tallied(jobs) == (3, 3, 0, 0, 3)
    tally = jobs.tally("stream", STREAM)
    assert [(job.job_id, job.number, job.state) for job in tally.jobs] == [
        (job_id, number, JobState.COMPLETED) for number, job_id in enumerate(ids, 1)
    ]
    assert all(job.finished_at is not None and job.created_at <= job.finished_at <= job.heard_at for job in tally.jobs)


def test_a_job_that_is_retried_by_its_user_ends_again_and_is_not_doubled(jobs: Jobs) -> None:
    [job_id] = submitted(jobs, 1)
    jobs.cancel(job_id)
    jobs.retry(job_id)
    register_each(jobs)
    complete_each(jobs)
    assert tallied(jobs) == (1, 1, 0, 0, 0)


def test_a_tenant_sees_its_own(jobs: Jobs) -> None:
    submitted(jobs, 1, tenant="one")
    submitted(jobs, 1, 2, tenant="two")
    assert [tallied(jobs, tenant)[0] for tenant in ("one", "two", "three")] == [1, 2, 0]


def test_a_number_without_a_job_is_lost(jobs: Jobs) -> None:
    _, second, *_ = submitted(jobs, 1, 2, 3)
    jobs.cancel(second)
    jobs.delete(second)
    assert tallied(jobs) == (2, 0, 1, 0, 0)


def test_a_job_of_which_nothing_is_heard_for_long_is_lost_until_it_goes_on(jobs: Jobs, database: Database) -> None:
    submitted(jobs, 1, 2)
    for seconds, lost in ((LOST_AFTER_S - 10, 0), (LOST_AFTER_S, 2)):
        with database.begin() as tx:
            tx.execute(text("UPDATE jobs SET created_at = created_at - :s"), {"s": seconds})
            tx.execute(text("UPDATE stage_runs SET queued_at = queued_at - :s"), {"s": seconds})
        assert tallied(jobs) == (2, 0, lost, 0, 0)
    register(jobs, "w")
    claim(jobs, "w", 1)
    assert tallied(jobs) == (2, 0, 1, 0, 0)


def written(statement: str) -> Callable[[Database], None]:
    """Write what no transition writes."""

    def write(database: Database) -> None:
        with database.begin() as tx:
            assert tx.exec_driver_sql(statement).rowcount == 1

    return write


FIRST = "(SELECT min(id) FROM stage_runs)"


@pytest.mark.parametrize(
    "fault",
    [
        written(
            "INSERT INTO events (job_id, number, type, data, at)"
            " SELECT id, 99, 'job.completed', '{}', finished_at FROM jobs"
        ),
        written(
            "INSERT INTO attempt_errors (stage_run_id, attempt, worker, error, at)"
            f" SELECT id, attempt, 'w', '{{}}', finished_at FROM stage_runs WHERE id = {FIRST}"
        ),
        written(f"UPDATE stage_runs SET usage = '{{\"attempts\":2}}' WHERE id = {FIRST}"),
    ],
    ids=["an end of a job", "a result and an error of an attempt", "an end of an attempt"],
)
def test_what_is_recorded_twice_is_doubled(jobs: Jobs, database: Database, fault: Callable[[Database], None]) -> None:
    submitted(jobs, 1)
    register_each(jobs)
    complete_each(jobs)
    assert tallied(jobs)[3] == 0
    fault(database)
    assert tallied(jobs)[3] == 1


def test_a_number_with_two_jobs_is_doubled(jobs: Jobs) -> None:
    submitted(jobs, 1, 2, 2, 3)
    assert tallied(jobs) == (4, 0, 0, 1, 0)
