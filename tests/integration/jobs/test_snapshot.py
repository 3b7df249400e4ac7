"""Snapshots of running stage runs: who may record one, what the next attempt gets, and when its object goes.

On SQLite and on PostgreSQL, with answers heard and lost.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, ModelError, OutOfMemory
from omni_jobs.jobs import Claim, Jobs, NewSnapshot, ProgressReport, StoredSnapshot
from omni_jobs.states import JobState
from omni_jobs.storage import ObjectRef, job_prefix, payload_key, snapshot_key
from tests.integration.job_steps import (
    claim,
    complete_all,
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

TWO_WAYS = {"first": [], "second": []}


@pytest.fixture
def jobs(jobs_or_forgetful: Jobs) -> Jobs:
    """Every test of this file runs with lost answers as well."""
    return jobs_or_forgetful


def snapshot(claimed: Claim, number: int, worker_id: str = "first", *, steps_done: int = 10) -> NewSnapshot:
    key = snapshot_key(claimed.job_id, claimed.stage, claimed.attempt, number)
    ref = ObjectRef(key=key, size=3, digest="xxh3:" + "0" * 32)
    return NewSnapshot(claimed.stage_run_id, claimed.attempt, worker_id, ref, steps_done)


def stored(new: NewSnapshot, before: NewSnapshot | None = None) -> StoredSnapshot:
    return StoredSnapshot(new.ref, new.steps_done, new.attempt, None if before is None else stored(before))


def garbage(jobs: Jobs) -> list[str]:
    return [note.what for note in jobs.garbage()]


@pytest.fixture
def claimed(jobs: Jobs) -> Claim:
    """A stage run of worker "first", whose attempt is the first."""
    register_each(jobs)
    submit_one(jobs, new_job())
    [claimed] = claim(jobs, "first")
    assert claimed.snapshot is None
    return claimed


def test_the_newest_two_go_to_the_next_attempt_and_those_before_are_garbage(jobs: Jobs, claimed: Claim) -> None:
    oldest, old, new = (snapshot(claimed, number, steps_done=10 * number) for number in (1, 2, 3))
    assert jobs.record_snapshots([oldest]) == [True]
    assert jobs.record_snapshots([old]) == [True]
    assert garbage(jobs) == []
    assert jobs.record_snapshots([new]) == [True]
    assert garbage(jobs) == [oldest.ref.key]
    release(jobs, [(claimed.stage_run_id, claimed.attempt)], "first")
    [again] = claim(jobs, "first")
    assert (again.attempt, again.snapshot) == (2, stored(new, old))
    # They last until the next attempts have their own.
    fail(jobs, failed(again, "first", Fenced()))
    [third] = claim(jobs, "first")
    assert (third.attempt, third.snapshot) == (3, stored(new, old))
    newest = snapshot(third, 1, steps_done=40)
    assert jobs.record_snapshots([newest]) == [True]
    assert garbage(jobs) == [oldest.ref.key, old.ref.key]
    release(jobs, [(third.stage_run_id, third.attempt)], "first")
    [fourth] = claim(jobs, "first")
    assert fourth.snapshot == stored(newest, new)


def test_several_in_one_trip(jobs: Jobs) -> None:
    register(jobs, "first")
    jobs.submit_all([new_job() for _ in range(3)])
    one, two, three = claim(jobs, "first")
    release(jobs, [(three.stage_run_id, three.attempt)], "first")
    oldest, old, new = (snapshot(one, number, steps_done=10 + number) for number in (1, 2, 3))
    others = [snapshot(three, 1), snapshot(two, 1)]
    assert jobs.record_snapshots([]) == []
    assert jobs.record_snapshots([oldest, old, *others, new]) == [True, True, False, True, True]
    assert garbage(jobs) == [oldest.ref.key]
    release(jobs, [(each.stage_run_id, each.attempt) for each in (one, two)], "first")
    assert {each.job_id: each.snapshot for each in claim(jobs, "first")} == {
        one.job_id: stored(new, old),
        two.job_id: stored(others[1]),
        three.job_id: None,
    }


def test_only_the_running_attempts_owner_records(jobs: Jobs, claimed: Claim, database: Database) -> None:
    register(jobs, "other")
    assert jobs.record_snapshots([snapshot(claimed, 1, "other")]) == [False]
    unknown = claimed._replace(stage_run_id=10**6)
    assert jobs.record_snapshots([snapshot(unknown, 1)]) == [False]
    kept = snapshot(claimed, 1)
    assert jobs.record_snapshots([kept]) == [True]
    pass_time(database, 100)  # its lease is over, and another worker takes the stage run
    register(jobs, "other")
    jobs.rescue()
    late = snapshot(claimed, 2)
    assert jobs.record_snapshots([late]) == [False]
    [again] = claim(jobs, "other")
    assert again.snapshot == stored(kept)
    assert jobs.record_snapshots([late]) == [False]
    assert jobs.record_snapshots([snapshot(again, 1, "other")]) == [True]
    assert garbage(jobs) == []
    assert jobs.record_snapshots([snapshot(again, 2, "other")]) == [True]
    assert garbage(jobs) == [kept.ref.key]


def test_one_that_is_recorded_stays_so_though_its_attempt_is_over(jobs: Jobs, claimed: Claim) -> None:
    """Else its worker, which never heard of the commit, would delete the next attempt's object."""
    kept = snapshot(claimed, 1)
    assert jobs.record_snapshots([kept]) == [True]
    release(jobs, [(claimed.stage_run_id, claimed.attempt)], "first")
    assert jobs.record_snapshots([kept]) == [True]
    [again] = claim(jobs, "first")
    assert again.snapshot == stored(kept)
    assert jobs.record_snapshots([snapshot(again, 1)]) == [True]
    assert jobs.record_snapshots([kept]) == [True]
    assert jobs.record_snapshots([snapshot(again, 2)]) == [True]
    assert jobs.record_snapshots([kept]) == [False]
    assert garbage(jobs) == [kept.ref.key]


@pytest.mark.parametrize("end", ["complete", "fail", "cancel", "expire"])
def test_with_its_end_it_is_garbage(jobs: Jobs, claimed: Claim, database: Database, end: str) -> None:
    last = snapshot(claimed, 1)
    jobs.record_snapshots([last])
    attempt = (claimed.stage_run_id, claimed.attempt)
    if end == "complete":
        [outcome] = jobs.report([done(claimed, "first")])
        assert outcome.won
    elif end == "fail":
        fail(jobs, failed(claimed, "first", ModelError()))
    else:
        if end == "cancel":
            assert jobs.cancel(claimed.job_id) is JobState.CANCELLING
        else:
            with database.begin() as tx:
                tx.execute(text("UPDATE jobs SET deadline = 0"))
            jobs.rescue()
        assert jobs.record_snapshots([last]) == [True], "it runs until its worker stops it"
        assert garbage(jobs) == []
        release(jobs, [attempt], "first")
    assert garbage(jobs) == [last.ref.key]
    assert jobs.record_snapshots([snapshot(claimed, 2)]) == [False]
    with database.begin() as tx:
        assert set(tx.execute(text("SELECT snapshot FROM stage_runs")).scalars()) == {None}


def test_of_a_stage_run_that_waits_it_goes_with_the_job(jobs: Jobs) -> None:
    """Cancelled by its user, and by another stage's failure."""
    register_each(jobs, TWO_WAYS)
    kept = []
    for _ in range(2):
        submit_one(jobs, new_job(TWO_WAYS))
        [claimed] = claim(jobs, "first")
        kept.append(snapshot(claimed, 1))
        jobs.record_snapshots(kept[-1:])
        fail(jobs, failed(claimed, "first", OutOfMemory()))  # queued again, and not due
        assert garbage(jobs) == [each.ref.key for each in kept[:-1]]
        [other] = claim(jobs, "second")
        if len(kept) == 1:
            jobs.cancel(claimed.job_id)
            assert release(jobs, [(other.stage_run_id, 1)], "second") == set()
        else:
            fail(jobs, failed(other, "second", ModelError()))
        assert stages(jobs, claimed.job_id)["first"] == "cancelled"
        assert garbage(jobs) == [each.ref.key for each in kept]


def test_a_users_retry_begins_anew(jobs: Jobs, claimed: Claim) -> None:
    last = snapshot(claimed, 1)
    jobs.record_snapshots([last])
    fail(jobs, failed(claimed, "first", ModelError()))
    assert garbage(jobs) == [last.ref.key]
    jobs.retry(claimed.job_id)
    [again] = claim(jobs, "first")
    assert (again.attempt, again.snapshot) == (2, None)


def test_the_sweep_keeps_what_a_stage_run_may_need(jobs: Jobs, claimed: Claim) -> None:
    first, second = snapshot(claimed, 1), snapshot(claimed, 2)
    keys = {first.ref.key, second.ref.key}
    jobs.record_snapshots([first])
    assert jobs.orphans(sorted(keys)) == set(), "of an attempt that runs, all stay"
    release(jobs, [(claimed.stage_run_id, claimed.attempt)], "first")
    assert jobs.orphans(sorted(keys)) == {second.ref.key}
    [again] = claim(jobs, "first")
    assert jobs.orphans(sorted(keys)) == {second.ref.key}
    jobs.report([done(again, "first", inline_payload=b"x")])
    assert jobs.orphans(sorted(keys)) == keys
    complete_all(jobs, "second")
    assert jobs.get(claimed.job_id).status is JobState.COMPLETED


def test_its_key_lies_below_the_jobs_payloads() -> None:
    """So what deletes a job's payloads deletes its snapshots."""
    job_id = new_job().job_id
    key = snapshot_key(job_id, "first", 3, 7)
    assert key.startswith(f"{job_prefix(job_id)}payloads/")
    assert key != payload_key(job_id, "first", 3)


def test_progress_says_where_an_attempt_went_on(jobs: Jobs, claimed: Claim) -> None:
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 40, 50, "steps", resumed_at=38)])
    progress = jobs.get(claimed.job_id).stages[0].progress
    assert progress is not None
    assert (progress.done, progress.resumed_at) == (40, 38)


def test_a_snapshot_and_an_end_at_once_leave_nothing(jobs: Jobs, database: Database) -> None:
    """Each snapshot is either refused, so that its worker deletes it, or its key is garbage."""
    register(jobs, "first", slots=100)
    for _ in range(10):
        submit_one(jobs, new_job({"first": []}))
        [claimed] = claim(jobs, "first")
        taken = [snapshot(claimed, number) for number in range(4)]
        begin = threading.Barrier(2)

        def record(taken: list[NewSnapshot] = taken, begin: threading.Barrier = begin) -> list[NewSnapshot]:
            begin.wait(10)
            return [each for each in taken if jobs.record_snapshots([each]) == [True]]

        def end(claimed: Claim = claimed, begin: threading.Barrier = begin) -> None:
            begin.wait(10)
            jobs.cancel(claimed.job_id)
            release(jobs, [(claimed.stage_run_id, claimed.attempt)], "first")

        with ThreadPoolExecutor(2) as pool:
            recorded, ended = pool.submit(record), pool.submit(end)
            keys = [each.ref.key for each in recorded.result(30)]
            ended.result(30)
        assert jobs.get(claimed.job_id).status is JobState.CANCELLED
        noted = [note.what for note in jobs.garbage() if note.what in {each.ref.key for each in taken}]
        assert set(keys) <= set(noted)  # one whose answer was lost may be refused and noted
        assert len(noted) == len(set(noted))
    with database.begin() as tx:
        assert tx.execute(text("SELECT count(*) FROM stage_runs WHERE snapshot IS NOT NULL")).scalar_one() == 0
