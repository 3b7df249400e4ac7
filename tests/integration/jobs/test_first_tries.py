"""Requests that are sent again without a key, on both databases."""

from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.jobs import FirstTry, Jobs, new_try
from omni_jobs.states import JobState
from tests.integration.job_steps import new_job, pass_time, submit_one

REQUEST, OTHER = (f"sha256:{digit * 64}" for digit in "12")


def sent(jobs: Jobs, number: int, request: str = REQUEST, tenant: str = "default") -> FirstTry:
    """A request as it submits, for the first time or again."""
    taken = jobs.take_try(tenant, request, number) if number else None
    if taken is not None:
        return taken
    begun = new_try(tenant, request, number)
    jobs.note_requests(begun=[begun])
    return begun


def key_of(jobs: Jobs, number: int, request: str = REQUEST, tenant: str = "default") -> str:
    return sent(jobs, number, request, tenant).key


def test_each_repetition_finds_its_first_try(jobs: Jobs) -> None:
    key = key_of(jobs, 0)
    assert [key_of(jobs, number) for number in (1, 2, 7)] == [key] * 3
    assert key_of(jobs, 1, OTHER) != key
    assert key_of(jobs, 1, tenant="others") != key


def test_first_tries_are_jobs_of_their_own_and_so_are_their_repetitions(jobs: Jobs) -> None:
    keys = {key_of(jobs, 0) for _ in range(5)}
    assert len(keys) == 5
    for number in (1, 2):
        assert {key_of(jobs, number) for _ in range(5)} == keys
    assert key_of(jobs, 2) not in keys


def test_a_repetition_finds_first_what_is_known_to_be_lost(jobs: Jobs, database: Database) -> None:
    tries = []
    for _ in range(3):
        pass_time(database, 1)  # the order of those of one millisecond is anybody's guess
        tries.append(sent(jobs, 0))
    jobs.note_requests(lost=[tries[1]])
    assert key_of(jobs, 1) == tries[1].key
    assert key_of(jobs, 1) == tries[2].key


def test_a_first_try_that_never_came_is_made_up_for(jobs: Jobs) -> None:
    key = key_of(jobs, 1)
    assert key_of(jobs, 1) != key
    assert key_of(jobs, 0) != key


def test_a_repetition_whose_first_try_was_refused_writes_nothing(jobs: Jobs, database: Database) -> None:
    assert jobs.take_try("default", REQUEST, 1) is None
    with database.begin() as tx:
        assert tx.execute(text("SELECT count(*) FROM first_tries")).scalar_one() == 0


def test_first_tries_are_forgotten(jobs: Jobs, database: Database) -> None:
    old = key_of(jobs, 0)
    pass_time(database, 899)
    assert key_of(jobs, 1) == old
    pass_time(database, 2)
    new = key_of(jobs, 2)
    assert new != old
    jobs.rescue()
    with database.begin() as tx:
        assert tx.execute(text("SELECT key FROM first_tries")).scalars().all() == [new]


def test_a_request_that_was_answered_is_no_first_try_of_a_later_one(jobs: Jobs, database: Database) -> None:
    answered = sent(jobs, 0)
    pass_time(database, 1)  # SQLite's clock tells milliseconds
    repeated = sent(jobs, 0)
    assert key_of(jobs, 1) == repeated.key
    jobs.note_requests(ended=[answered, repeated])  # the repetition of the second has its key
    again = sent(jobs, 2)
    assert again.key == repeated.key
    jobs.note_requests(ended=[again])
    assert key_of(jobs, 3) not in (answered.key, repeated.key)


def test_a_commit_whose_answer_is_lost_gives_the_same_key(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    first = key_of(jobs, 0)
    assert key_of(jobs, 1) == first
    assert key_of(jobs, 1) != first


def test_many_are_noted_at_once(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    begun = [new_try("default", REQUEST, 0) for _ in range(300)]
    jobs.note_requests(begun=begun)
    jobs.note_requests(ended=begun[1:], lost=begun[:1], left=[f"job-{number}" for number in range(300)])
    with database.begin() as tx:
        assert tx.execute(text("SELECT key, is_lost FROM first_tries")).all() == [(begun[0].key, True)]
        assert tx.execute(text("SELECT count(*) FROM abandoned_jobs")).scalar_one() == 300


def test_what_is_withdrawn_frees_its_key(jobs: Jobs) -> None:
    job_id = submit_one(jobs, new_job(idempotency_key="mine")).job_id
    jobs.withdraw([job_id])
    assert jobs.get(job_id).status is JobState.CANCELLED
    again = submit_one(jobs, new_job(idempotency_key="mine"))
    assert (again.created, again.job_id == job_id) == (True, False)
