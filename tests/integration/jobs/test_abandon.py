"""Jobs whose clients have left, on both databases."""

from sqlalchemy import event, text

from omni_jobs.database.database import Database
from omni_jobs.jobs import DatabasePresence, Jobs
from omni_jobs.states import JobState
from tests.integration.job_steps import claim, complete_each, new_job, pass_time, register, register_each, submit_one


def test_a_job_that_nobody_asks_for_is_cancelled_in_time(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    left, asked, waits, kept, watched = (submit_one(jobs, new_job()).job_id for _ in range(5))
    register(jobs, "w")
    assert [each.job_id for each in claim(jobs, "w", at_most=1)] == [left]
    jobs.note_requests(left=[waits, asked, left, watched])
    pass_time(database, 30)
    jobs.note_requests(left=[left])  # since the first time
    jobs.ask_for([asked])
    jobs.ask_for([kept])
    jobs.rescue()
    assert jobs.get(left).status is JobState.IN_PROGRESS
    assert set(jobs.abandoned([left, asked, waits, kept])) == {left, waits}
    jobs.renew("w", 60)
    pass_time(database, 31)
    jobs.watch([watched])
    jobs.rescue()
    assert jobs.get(left).status is JobState.CANCELLING
    assert jobs.get(waits).status is JobState.CANCELLED
    assert {jobs.get(each).status for each in (asked, kept, watched)} == {JobState.QUEUED}
    assert not jobs.abandoned([left, waits, watched])


def test_who_asks_for_a_job_reads_it_in_one_transaction(jobs: Jobs, database: Database) -> None:
    left, other = (submit_one(jobs, new_job()).job_id for _ in range(2))
    jobs.note_requests(left=[left])
    begun: list[str] = []
    event.listen(database._engine, "begin", lambda connection: begun.append("transaction"))
    assert jobs.get_asked(other).id == other
    assert len(begun) == 1
    assert jobs.get_asked(left, "default").id == left
    assert len(begun) == 3  # the second of them writes
    assert not jobs.abandoned([left])


def test_a_job_that_has_ended_or_is_gone_stays_so(jobs: Jobs, database: Database) -> None:
    job_id = submit_one(jobs, new_job()).job_id
    register_each(jobs)
    complete_each(jobs)
    jobs.note_requests(left=[job_id, "job-gone"])
    pass_time(database, 61)
    jobs.rescue()
    assert jobs.get(job_id).status is JobState.COMPLETED
    assert not jobs.abandoned([job_id, "job-gone"])


def test_a_client_that_comes_again_too_late_gets_a_new_job(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    register(jobs, "w")
    left = submit_one(jobs, new_job(idempotency_key="mine")).job_id
    runs = submit_one(jobs, new_job(idempotency_key="runs")).job_id
    ended = submit_one(jobs, new_job(idempotency_key="ended")).job_id
    jobs.cancel(ended)
    claim(jobs, "w", at_most=2)
    jobs.note_requests(left=[left, runs, ended])
    pass_time(database, 59)
    jobs.rescue()
    assert submit_one(jobs, new_job(idempotency_key="mine")).job_id == left
    jobs.renew("w", 60)
    pass_time(database, 2)
    jobs.rescue()
    for key in ("mine", "runs"):
        again = submit_one(jobs, new_job(idempotency_key=key))
        assert again.created
        assert again.job_id not in (left, runs)
    assert submit_one(jobs, new_job(idempotency_key="ended")).job_id == ended, "it was not cancelled for that"


def test_whoever_retries_a_job_asks_for_it(jobs_or_forgetful: Jobs, database: Database) -> None:
    jobs = jobs_or_forgetful
    job_id = submit_one(jobs, new_job()).job_id
    jobs.note_requests(left=[job_id])
    jobs.cancel(job_id)
    jobs.retry(job_id)
    pass_time(database, 61)
    jobs.rescue()
    assert jobs.get(job_id).status is JobState.QUEUED


def test_the_time_to_ask_begins_anew_once_the_database_is_there_again(jobs: Jobs, database: Database) -> None:
    job_id = submit_one(jobs, new_job()).job_id
    jobs.note_requests(left=[job_id])
    pass_time(database, 3600)  # in which nobody reached the database
    jobs.rescue(DatabasePresence(5))
    assert jobs.get(job_id).status is JobState.QUEUED
    assert jobs.abandoned([job_id])
    with database.begin() as tx:
        left_at = tx.execute(text("SELECT at FROM abandoned_jobs")).scalar_one()
    for answers_for_s, state in ((30, JobState.QUEUED), (61, JobState.CANCELLED)):
        presence = DatabasePresence(7200)
        presence.note(left_at + 3600 - answers_for_s)
        jobs.rescue(presence)
        assert jobs.get(job_id).status is state
