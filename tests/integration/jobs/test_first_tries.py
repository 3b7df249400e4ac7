"""Requests that are sent again without a key, on both databases."""

from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.jobs import FirstTry, Jobs
from omni_jobs.states import JobState
from tests.integration.job_steps import new_job, pass_time, submit_one

REQUEST, OTHER = (f"sha256:{digit * 64}" for digit in "12")


def test_each_repetition_finds_its_first_try(jobs: Jobs) -> None:
    key = jobs.key_of_try("default", REQUEST, 0)
    assert [jobs.key_of_try("default", REQUEST, number) for number in (1, 2, 7)] == [key] * 3
    assert jobs.key_of_try("default", OTHER, 1) != key
    assert jobs.key_of_try("others", REQUEST, 1) != key


def test_first_tries_are_jobs_of_their_own_and_so_are_their_repetitions(jobs: Jobs) -> None:
    keys = {jobs.key_of_try("default", REQUEST, 0) for _ in range(5)}
    assert len(keys) == 5
    for number in (1, 2):
        assert {jobs.key_of_try("default", REQUEST, number) for _ in range(5)} == keys
    assert jobs.key_of_try("default", REQUEST, 2) not in keys


def test_a_repetition_finds_first_what_is_known_to_be_lost(jobs: Jobs) -> None:
    keys = [jobs.key_of_try("default", REQUEST, 0) for _ in range(3)]
    jobs.lose_try(FirstTry(keys[1], 0))
    assert jobs.key_of_try("default", REQUEST, 1) == keys[1]
    assert jobs.key_of_try("default", REQUEST, 1) == keys[2]


def test_a_first_try_that_never_came_is_made_up_for(jobs: Jobs) -> None:
    key = jobs.key_of_try("default", REQUEST, 1)
    assert jobs.key_of_try("default", REQUEST, 1) != key
    assert jobs.key_of_try("default", REQUEST, 0) != key


def test_first_tries_are_forgotten(jobs: Jobs, database: Database) -> None:
    old = jobs.key_of_try("default", REQUEST, 0)
    pass_time(database, 899)
    assert jobs.key_of_try("default", REQUEST, 1) == old
    pass_time(database, 2)
    new = jobs.key_of_try("default", REQUEST, 2)
    assert new != old
    jobs.rescue()
    with database.begin() as tx:
        assert tx.execute(text("SELECT key FROM first_tries")).scalars().all() == [new]


def test_a_request_that_was_answered_is_no_first_try_of_a_later_one(jobs: Jobs, database: Database) -> None:
    answered = jobs.key_of_try("default", REQUEST, 0)
    pass_time(database, 1)  # SQLite's clock tells milliseconds
    repeated = jobs.key_of_try("default", REQUEST, 0)
    assert jobs.key_of_try("default", REQUEST, 1) == repeated
    jobs.end_try(FirstTry(answered, 0))
    jobs.end_try(FirstTry(repeated, 0))  # its repetition has the key
    assert jobs.key_of_try("default", REQUEST, 2) == repeated
    jobs.end_try(FirstTry(repeated, 2))
    assert jobs.key_of_try("default", REQUEST, 3) not in (answered, repeated)


def test_a_commit_whose_answer_is_lost_gives_the_same_key(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    first = jobs.key_of_try("default", REQUEST, 0)
    assert jobs.key_of_try("default", REQUEST, 1) == first
    assert jobs.key_of_try("default", REQUEST, 1) != first


def test_what_is_withdrawn_frees_its_key(jobs: Jobs) -> None:
    job_id = submit_one(jobs, new_job(idempotency_key="mine")).job_id
    jobs.withdraw([job_id])
    assert jobs.get(job_id).status is JobState.CANCELLED
    again = submit_one(jobs, new_job(idempotency_key="mine"))
    assert (again.created, again.job_id == job_id) == (True, False)
