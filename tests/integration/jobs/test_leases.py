"""Workers' leases and slots, and what is lost with them, on SQLite and on PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, SlotTaken
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import Claims, DatabasePresence, JobFilter, Jobs, NewWorker, RescueResult
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import TWICE, claim, done, failures, new_job, pass_time, register, stages, submit_one


def test_a_lost_workers_stage_runs_are_freed(jobs_or_forgetful: Jobs, database_url: str) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w1", lease_s=10)
    (claimed,) = claim(jobs, "w1")
    assert jobs.rescue().freed == 0
    database = Database(database_url)
    pass_time(database, 10)
    database.close()
    jobs.rescue()
    with pytest.raises(Fenced):
        jobs.renew("w1", 10)
    stage = jobs.get(submitted.job_id).stages[0]
    assert (stage.status, stage.reason) == (StageRunState.QUEUED, "no_worker")
    assert [(error.code, error.worker) for error in stage.errors] == [("worker_lost", "w1")]
    assert not jobs.report([done(claimed, "w1")])[0].won
    register(jobs, "w2")
    (again,) = claim(jobs, "w2")
    assert (again.attempt, failures(jobs, again)) == (2, {"worker_lost": 1})


def test_a_renewed_lease_holds(jobs: Jobs, database: Database) -> None:
    register(jobs, "w", lease_s=10)
    for _ in range(3):
        pass_time(database, 8)
        assert jobs.renew("w", 10).wishes.unwanted == []
    assert jobs.rescue().freed == 0
    assert [worker.id for worker in jobs.workers()] == ["w"]


def test_a_lease_that_is_over_begins_anew_if_nobody_has_taken_what_it_covers(jobs_or_forgetful: Jobs) -> None:
    """After an outage of the database: the worker renews before it claims, and goes on with what it has."""
    jobs = jobs_or_forgetful
    submitted, waiting = submit_one(jobs, new_job({"first": []})), submit_one(jobs, new_job({"first": []}))
    register(jobs, "w", lease_s=10)
    (claimed,) = claim(jobs, "w", 1)
    pass_time(jobs._db, 3600)
    assert jobs.claim("w", 5, held=[claimed.stage_run_id]) == Claims(())
    assert stages(jobs, waiting.job_id) == {"first": "queued"}
    assert jobs.workers() == []
    assert jobs.renew("w", 10).wishes.unwanted == []
    assert jobs.rescue().freed == 0
    assert [(worker.id, worker.running) for worker in jobs.workers()] == [("w", 1)]
    assert jobs.report([done(claimed, "w")])[0].won
    assert [run.attempt for run in jobs.get(submitted.job_id).stages] == [1]
    assert [each.job_id for each in claim(jobs, "w", 1)] == [waiting.job_id]


def test_a_renewal_and_a_rescue_have_one_winner(jobs: Jobs, database: Database) -> None:
    """Of a worker whose lease is over: it goes on with its attempt, or another one takes the next."""
    for number in range(20):
        name = f"w{number}"
        submitted = submit_one(jobs, new_job({"first": []}))
        register(jobs, name)
        (claimed,) = claim(jobs, name)
        pass_time(database, 100)

        def renewed(name: str = name) -> bool:
            try:
                jobs.renew(name, 60)
            except Fenced:
                return False
            return True

        with ThreadPoolExecutor(2) as pool:
            lives, rescued = pool.submit(renewed), pool.submit(lambda: jobs.rescue().freed)
            assert (lives.result(), rescued.result()) in [(True, 0), (False, 1)]
        assert jobs.report([done(claimed, name)])[0].won is lives.result()
        jobs.cancel(submitted.job_id)
        jobs.retire_worker(name)


def test_a_rescuer_waits_a_lease_since_the_database_is_there_again(jobs: Jobs, database: Database) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w", lease_s=60)
    claim(jobs, "w")
    presence = DatabasePresence(5)
    jobs.rescue(presence)
    with database.begin() as tx:  # an hour goes by in which nobody reached the database
        at = tx.execute(text("SELECT renewed_at FROM workers")).scalar_one()
        tx.execute(text("UPDATE workers SET renewed_at = renewed_at - 3600, lease_until = lease_until - 3600"))
    assert jobs.rescue(presence).freed == 0, "its worker may only have missed the database"
    since = DatabasePresence(3600)
    since.note(at)
    assert jobs.rescue(since).freed == 0
    longer = DatabasePresence(3600)
    longer.note(at - 61)
    assert jobs.rescue(longer).freed == 1


def test_an_unknown_owner_is_rescued(jobs: Jobs, database: Database) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w")
    claim(jobs, "w")
    with database.begin() as tx:
        tx.execute(text("DELETE FROM workers"))
    assert jobs.rescue() == RescueResult(freed=1, queues={"echo.first"})


def test_a_job_that_kills_its_workers_ends(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job())
    for attempt in range(3):
        register(jobs, f"w{attempt}", slot="slot")
        assert len(claim(jobs, f"w{attempt}")) == 1
    assert register(jobs, "w3", slot="slot") == set()
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert view.error.code == "quarantined"
    assert [error.code for error in view.stages[0].errors] == ["worker_lost"] * 3
    assert jobs.list(JobFilter(error_code="quarantined")).jobs == [view]
    assert jobs.list(JobFilter(error_code="worker_lost")).jobs == []


def test_parallel_stage_runs_lost_for_the_last_time_fail_their_job_once(jobs: Jobs, database: Database) -> None:
    submitted = submit_one(jobs, new_job({"a": [], "b": [], "c": ["a", "b"]}))
    for attempt in range(3):
        for stage in "ab":
            register(jobs, f"{stage}{attempt}", stage, slot=stage)
            assert len(claim(jobs, f"{stage}{attempt}")) == 1
    pass_time(database, 100)
    assert jobs.rescue().freed == 2
    assert stages(jobs, submitted.job_id) == {"a": "failed", "b": "cancelled", "c": "cancelled"}


def test_a_restart_in_the_same_slot_takes_over_at_once(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    register(jobs, "boot-1", slot="host/first")
    (claimed,) = claim(jobs, "boot-1")
    assert register(jobs, "boot-2", slot="host/first") == {"echo.first"}
    with pytest.raises(Fenced):
        jobs.renew("boot-1", 60)
    with pytest.raises(Fenced):
        claim(jobs, "boot-1")
    assert not jobs.report([done(claimed, "boot-1")])[0].won
    assert [worker.id for worker in jobs.workers()] == ["boot-2"]
    assert register(jobs, "boot-2", slot="host/first") == set()


def test_of_rivals_for_a_slot_one_gets_it(jobs: Jobs) -> None:
    def start(number: int) -> bool:
        try:
            jobs.register_worker(
                NewWorker(f"boot-{number}", "s", StageId(PipelineId("echo", "d"), "first"), "host", 1, 4, "1"), 60.0
            )
        except SlotTaken:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        got_it = list(pool.map(start, range(8)))
    assert got_it.count(True) == 1
    assert [worker.id for worker in jobs.workers()] == [f"boot-{got_it.index(True)}"]


def test_the_slot_of_a_worker_that_lives_is_not_taken(jobs: Jobs, database: Database) -> None:
    newcomer = NewWorker(
        "b", "slot", StageId(PipelineId("echo", "d"), "first"), "host", 2, 4, "1", pid_space="boot/1", pid_started=7
    )
    submit_one(jobs, new_job())
    register(jobs, "a", slot="slot")
    (claimed,) = claim(jobs, "a")
    seen = jobs.slot_holder("slot")
    assert seen is not None
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0)
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0, instead_of=replace(seen, worker_id="another"))
    with pytest.raises(SlotTaken):
        jobs.register_worker(newcomer, 60.0, instead_of=replace(seen, renewed_at=seen.renewed_at - 1))
    assert jobs.renew("a", 60.0).wishes.unwanted == []
    assert jobs.report([done(claimed, "a")])[0].won
    pass_time(database, 100)
    assert jobs.register_worker(newcomer, 60.0) == set(), "whose lease is over has lost its slot"
    holder = jobs.slot_holder("slot")
    assert holder is not None
    assert (holder.worker_id, holder.pid, holder.pid_space, holder.pid_started) == ("b", 2, "boot/1", 7)
    assert holder.has_lease
    with pytest.raises(Fenced):
        jobs.renew("a", 60.0)


def test_a_worker_that_loads_holds_its_slot_and_is_not_counted_on(jobs: Jobs) -> None:
    loading = NewWorker("a", "slot", StageId(PipelineId("echo", "d"), "first"), "host", 1, 4, "1")
    submit_one(jobs, new_job())
    jobs.register_worker(loading, 60.0, loading=True)
    assert jobs.workers() == []
    with pytest.raises(SlotTaken):
        jobs.register_worker(replace(loading, worker_id="b"), 60.0)
    jobs.register_worker(loading, 60.0)
    assert [worker.id for worker in jobs.workers()] == ["a"]


def test_that_a_living_worker_was_fenced_is_not_its_stage_runs_fault(jobs_or_forgetful: Jobs) -> None:
    """Stopped and continued more often than a stage run may lose its worker; one that is killed still counts."""
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    attempt = 0
    for _ in range(TWICE.worker_lost + 2):
        register(jobs, f"w{attempt}", slot="slot")
        (claimed,) = claim(jobs, f"w{attempt}")
        assert not claimed.alone
        register(jobs, f"w{attempt + 1}", slot="slot")  # while it is stopped
        jobs.forgive(f"w{attempt}")  # and now it goes on
        attempt += 1
    assert {error.code for error in jobs.get(submitted.job_id).stages[0].errors} == {"fenced"}
    for _ in range(TWICE.worker_lost + 1):
        assert jobs.get(submitted.job_id).status == JobState.IN_PROGRESS
        register(jobs, f"w{attempt}", slot="slot")
        assert len(claim(jobs, f"w{attempt}")) == 1
        attempt += 1
        register(jobs, f"w{attempt}", slot="slot")
        jobs.forgive("another")
    view = jobs.get(submitted.job_id)
    assert view.error is not None
    assert view.error.code == "quarantined"
    codes = [error.code for error in view.stages[0].errors]
    assert codes == ["fenced"] * (TWICE.worker_lost + 2) + ["worker_lost"] * (TWICE.worker_lost + 1)


def test_what_is_forgiven_counts_no_more_after_a_retry(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job({"first": []}))
    for attempt in range(TWICE.worker_lost + 1):
        register(jobs, f"w{attempt}", slot="slot")
        claim(jobs, f"w{attempt}")
    register(jobs, "w3", slot="slot")
    assert jobs.get(submitted.job_id).status == JobState.FAILED
    jobs.retry(submitted.job_id)
    jobs.forgive("w0")
    (claimed,) = claim(jobs, "w3")
    assert failures(jobs, claimed) == {}


def test_what_has_failed_stays_quarantined_and_its_errors_say_why(jobs_or_forgetful: Jobs) -> None:
    """Its workers all lived, and said so too late: a failed job without a lost worker would explain nothing."""
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job({"first": []}))
    for attempt in range(TWICE.worker_lost + 1):
        register(jobs, f"w{attempt}", slot="slot")
        claim(jobs, f"w{attempt}")
    register(jobs, "last", slot="slot")
    for attempt in range(TWICE.worker_lost + 1):
        jobs.forgive(f"w{attempt}")
    view = jobs.get(submitted.job_id)
    assert view.error is not None
    assert view.error.code == "quarantined"
    assert [error.code for error in view.stages[0].errors] == ["worker_lost"] * (TWICE.worker_lost + 1)
