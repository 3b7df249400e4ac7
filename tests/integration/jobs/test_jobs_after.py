"""What happens to jobs late or after their end: expiry, retry, retention, on SQLite and on PostgreSQL."""

import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, Gone, InvalidRequest, ModelError, NotFound, OutOfMemory
from omni_jobs.jobs import Jobs, NewStage, PruneResult, Retention, StoredArtifact
from omni_jobs.jobs.life.retry_job import KEPT_ATTEMPTS, KEPT_EVENTS
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef, artifact_key, input_key, job_prefix, payload_key
from omni_jobs.views import JobView
from tests.integration.job_steps import (
    DIAMOND,
    claim,
    complete_all,
    complete_each,
    done,
    fail,
    failed,
    failures,
    new_job,
    pass_time,
    register,
    register_each,
    release,
    stages,
    submit_one,
)

KEEP = Retention(payloads_s=100, inputs_s=200, artifacts_s=300, events_s=400, jobs_s=1000)


@pytest.fixture
def jobs(jobs_or_forgetful: Jobs) -> Jobs:
    """Every test of this file runs with lost answers as well."""
    return jobs_or_forgetful


def ref(key: str) -> ObjectRef:
    return ObjectRef(key=key, size=3, digest="xxh3:" + "0" * 32)


def event_types(jobs: Jobs, job_id: str) -> list[str]:
    return [event.type for event in jobs.events(job_id)]


def error_of(view: JobView) -> tuple[str, str]:
    assert view.error is not None
    return view.error.code, view.error.message


# expiry


@pytest.mark.parametrize("end", ["failed", "cancelled", "expired"])
def test_a_job_that_is_not_completed_shows_what_its_stages_made(jobs: Jobs, database: Database, end: str) -> None:
    job = new_job(expires_in_s=60.0)
    submit_one(jobs, job)
    register_each(jobs)
    (claimed,) = claim(jobs, "first")
    jobs.report([done(claimed, "first", inline_payload=b"a", result={"text": "said", "texts": {"first": "heard"}})])
    if end == "failed":
        (claimed,) = claim(jobs, "second")
        fail(jobs, failed(claimed, "second", ModelError("nothing to say")))
    elif end == "cancelled":
        jobs.cancel(job.job_id)
    else:
        pass_time(database, 61)
        jobs.rescue()
    view = jobs.get(job.job_id)
    assert view.status == end
    assert view.result is None
    assert view.result_so_far == view.made == {"text": "said", "texts": {"first": "heard"}}
    assert jobs.list(brief=True).jobs[0].made == {}


def test_a_job_that_never_started_expires(jobs: Jobs, database: Database) -> None:
    job = new_job(expires_in_s=60.0)
    submit_one(jobs, job)
    assert jobs.rescue().expired == 0
    pass_time(database, 60)
    jobs.rescue()
    view = jobs.get(job.job_id)
    assert (view.status, view.started_at) == (JobState.EXPIRED, None)
    assert error_of(view) == ("deadline_exceeded", "the job's deadline passed before any stage of it started")
    assert stages(jobs, job.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert event_types(jobs, job.job_id) == ["job.expired"]
    register(jobs, "w")
    assert claim(jobs, "w") == []


def test_a_job_that_runs_expires_once_its_worker_has_stopped(jobs: Jobs, database: Database) -> None:
    job = new_job(expires_at=time.time() + 60)
    submit_one(jobs, job)
    view = jobs.get(job.job_id)
    assert view.expires_at is not None
    assert abs((view.expires_at - view.created_at).total_seconds() - 60) < 5
    register(jobs, "w", lease_s=1000)
    (claimed,) = claim(jobs, "w")
    pass_time(database, 61)
    jobs.rescue()
    assert jobs.get(job.job_id).status == JobState.CANCELLING
    assert jobs.wishes("w").unwanted == jobs.renew("w", 1000).wishes.unwanted == [claimed.stage_run_id]
    jobs.cancel(job.job_id)  # too late: it expires
    release(jobs, [(claimed.stage_run_id, claimed.attempt)], "w")
    view = jobs.get(job.job_id)
    assert view.status == JobState.EXPIRED
    assert view.started_at is not None
    assert error_of(view) == ("deadline_exceeded", "the job's deadline passed while it was at first")
    assert event_types(jobs, job.job_id) == ["job.cancelling", "job.expired"]


def test_a_job_that_ended_in_time_does_not_expire(jobs: Jobs, database: Database) -> None:
    job = new_job({"first": []}, expires_in_s=60.0)
    submit_one(jobs, job)
    register(jobs, "w")
    complete_all(jobs, "w")
    pass_time(database, 1000)
    assert jobs.rescue().expired == 0
    assert jobs.get(job.job_id).status == JobState.COMPLETED


def test_a_cancelled_job_past_its_deadline_is_cancelled(jobs: Jobs, database: Database) -> None:
    job = new_job(expires_in_s=60.0)
    submit_one(jobs, job)
    register(jobs, "w", lease_s=1000)
    (claimed,) = claim(jobs, "w")
    jobs.cancel(job.job_id)
    pass_time(database, 61)
    assert jobs.rescue().expired == 0
    release(jobs, [(claimed.stage_run_id, claimed.attempt)], "w")
    view = jobs.get(job.job_id)
    assert (view.status, view.error) == (JobState.CANCELLED, None)


def test_waiting_too_long_for_a_stage_expires_the_job(jobs: Jobs, database: Database) -> None:
    job = new_job()
    job = replace(job, stages=[job.stages[0], NewStage("second", ["first"], "echo.second", queue_limit_s=30)])
    submit_one(jobs, job)
    register_each(jobs, lease_s=1000)
    pass_time(database, 100)  # the first stage has no limit
    assert jobs.rescue().expired == 0
    complete_all(jobs, "first")
    (claimed,) = claim(jobs, "second")
    pass_time(database, 100)  # running is not waiting
    assert jobs.rescue().expired == 0
    fail(jobs, failed(claimed, "second", OutOfMemory()))  # the pause is no waiting either
    pass_time(database, 20)
    assert jobs.rescue().expired == 0
    pass_time(database, 31)
    jobs.rescue()
    view = jobs.get(job.job_id)
    assert view.status == JobState.EXPIRED
    assert error_of(view) == ("queue_time_limit", "waited longer than 30 s for stage second")


def test_many_jobs_expire_in_one_round(database: Database) -> None:
    jobs = Jobs(database)
    for _ in range(30):
        submit_one(jobs, new_job(expires_in_s=1.0))
    kept = new_job(expires_in_s=500.0)
    submit_one(jobs, kept)
    pass_time(database, 2)
    assert jobs.rescue().expired == 30
    assert jobs.get(kept.job_id).status == JobState.QUEUED


# retry


def test_a_failed_job_goes_on_where_it_failed(jobs: Jobs) -> None:
    job = new_job(expires_in_s=500.0)
    submit_one(jobs, job)
    register_each(jobs)
    complete_all(jobs, "first")
    (claimed,) = claim(jobs, "second")
    fail(jobs, failed(claimed, "second", ModelError("no")))
    assert jobs.get(job.job_id).status == JobState.FAILED
    assert jobs.retry(job.job_id) == {"echo.second"}
    view = jobs.get(job.job_id)
    assert (view.status, view.error, view.finished_at, view.retries) == (JobState.QUEUED, None, None, 1)
    assert view.expires_at is None
    assert [error.code for error in view.stages[1].errors] == ["model_error"]
    assert stages(jobs, job.job_id) == {"first": "succeeded", "second": "queued"}
    (again,) = claim(jobs, "second")
    assert (again.attempt, failures(jobs, again), again.upstream) == (2, {}, {"first": None})
    assert not jobs.report([done(claimed, "second")])[0].won
    assert jobs.report([done(again, "second")])[0].won
    assert jobs.get(job.job_id).status == JobState.COMPLETED
    assert event_types(jobs, job.job_id) == ["job.failed", "job.retried", "job.completed"]


def test_a_completed_job_is_run_again_from_a_stage(jobs: Jobs) -> None:
    job = new_job(DIAMOND)
    submit_one(jobs, job)
    register_each(jobs, DIAMOND)
    complete_each(jobs, DIAMOND)
    assert jobs.get(job.job_id).status == JobState.COMPLETED
    with pytest.raises(Conflict, match="name the stage"):
        jobs.retry(job.job_id)
    with pytest.raises(InvalidRequest) as raised:
        jobs.retry(job.job_id, "e")
    assert raised.value.field == "from_stage"
    assert jobs.retry(job.job_id, "b") == {"echo.b"}
    assert stages(jobs, job.job_id) == {"a": "succeeded", "b": "queued", "c": "succeeded", "d": "pending"}
    complete_each(jobs, DIAMOND)
    view = jobs.get(job.job_id)
    assert view.status == JobState.COMPLETED
    assert [stage.attempt for stage in view.stages] == [1, 2, 1, 2]
    jobs.retry(job.job_id, "a")
    assert [event.data["stages"] for event in jobs.events(job.job_id) if event.type == "job.retried"] == [
        ["b", "d"],
        ["a", "b", "c", "d"],
    ]


def test_what_it_had_made_is_replaced(jobs: Jobs) -> None:
    job = new_job({"only": []})
    submit_one(jobs, job)
    register(jobs, "w", "only")
    for attempt in (1, 2):
        (claimed,) = claim(jobs, "w")
        artifact = StoredArtifact("a.wav", "audio/wav", ref(artifact_key(job.job_id, "only", attempt, "a.wav")))
        assert jobs.report([done(claimed, "w", artifacts=[artifact])])[0].won
        assert jobs.artifact(job.job_id, "a.wav").ref == artifact.ref
        if attempt == 1:
            jobs.retry(job.job_id, "only")
            with pytest.raises(NotFound):
                jobs.artifact(job.job_id, "a.wav")
            (found,) = jobs.garbage()
            assert found.what == artifact.ref.key
    jobs.prune(KEEP)
    _, prefix = jobs.garbage()
    assert prefix.what == f"{job_prefix(job.job_id)}payloads/"
    with pytest.raises(Conflict, match="being cleaned up"):
        jobs.retry(job.job_id, "only")
    jobs.forget_garbage([prefix.id])
    assert jobs.garbage() == [found]  # the key of an old attempt, which no new one has
    assert jobs.retry(job.job_id, "only") == {"echo.only"}


def test_an_active_job_is_not_retried(jobs: Jobs) -> None:
    job = new_job()
    submit_one(jobs, job)
    with pytest.raises(Conflict, match="only a job that has ended"):
        jobs.retry(job.job_id)
    with pytest.raises(NotFound):
        jobs.retry("job-unknown")
    with pytest.raises(NotFound):
        jobs.retry("job-\ud800")


# payloads go as soon as no stage needs them


def test_retrying_without_end_keeps_a_bounded_number_of_events(jobs: Jobs, database: Database) -> None:
    job, other = new_job(), new_job()
    submit_one(jobs, job)
    submit_one(jobs, other)
    jobs.cancel(job.job_id)
    jobs.cancel(other.job_id)
    for _ in range(KEPT_EVENTS // 2 + 10):
        jobs.retry(job.job_id)
        jobs.cancel(job.job_id)
    events = jobs.events(job.job_id)
    assert len(events) in (KEPT_EVENTS, KEPT_EVENTS + 1)
    assert [event.id for event in events] == list(range(events[0].id, KEPT_EVENTS + 2 * 10 + 2))
    assert (events[-2].type, events[-1].type) == ("job.retried", "job.cancelled")
    assert event_types(jobs, other.job_id) == ["job.cancelled"]


def test_retrying_without_end_keeps_a_bounded_number_of_errors(jobs: Jobs, database: Database) -> None:
    job, other = new_job({"only": []}), new_job({"only": []})
    submit_one(jobs, job)
    submit_one(jobs, other)
    register(jobs, "only", "only")
    for run in claim(jobs, "only"):
        fail(jobs, failed(run, "only", ModelError("no")))
    with database.begin() as tx:  # as after many retries
        tx.execute(
            text("UPDATE stage_runs SET attempt = :attempt WHERE job_id = :job"),
            {"attempt": KEPT_ATTEMPTS, "job": job.job_id},
        )
    for number in range(3):
        jobs.retry(job.job_id)
        (run,) = claim(jobs, "only")
        fail(jobs, failed(run, "only", ModelError(f"no {number}")))
    assert [error.attempt for error in jobs.get(job.job_id).stages[0].errors] == [KEPT_ATTEMPTS + n for n in (1, 2, 3)]
    assert len(jobs.get(other.job_id).stages[0].errors) == 1


def test_a_payload_goes_with_its_last_reader(jobs: Jobs) -> None:
    job = new_job(DIAMOND)
    submit_one(jobs, job)
    register_each(jobs, DIAMOND)
    (claimed,) = claim(jobs, "a")
    key = payload_key(job.job_id, "a", 1)
    jobs.report([done(claimed, "a", payload=ref(key))])
    complete_all(jobs, "b")
    assert jobs.garbage() == []
    complete_all(jobs, "c")
    assert [found.what for found in jobs.garbage()] == [key]
    (d,) = claim(jobs, "d")
    fail(jobs, failed(d, "d", ModelError("no")))
    jobs.forget_garbage([found.id for found in jobs.garbage()])
    with pytest.raises(Conflict, match="retry from stage a"):
        jobs.retry(job.job_id, "b")
    assert jobs.retry(job.job_id) == {"echo.d"}


def test_a_small_payload_leaves_the_database_with_its_job_s_end(jobs: Jobs, database: Database) -> None:
    job = new_job(DIAMOND)
    submit_one(jobs, job)
    register_each(jobs, DIAMOND)
    for stage in DIAMOND:
        kept = read(database, "SELECT count(payload_inline) FROM stage_runs")
        (claimed,) = claim(jobs, stage)
        made = {"inline_payload": b"abc", "payload_bytes": 3} if claimed.has_successors else {}
        jobs.report([done(claimed, stage, **made)])
    assert kept == 3  # until then each was there for a retry
    assert read(database, "SELECT count(payload_inline) FROM stage_runs") == 0
    assert [stage.payload_bytes for stage in jobs.get(job.job_id).stages] == [3, 3, 3, 0]
    assert jobs.garbage() == []
    with pytest.raises(Conflict, match="retry from stage a"):
        jobs.retry(job.job_id, "d")
    assert jobs.retry(job.job_id, "a") == {"echo.a"}


# retention


def read(database: Database, query: str) -> Any:
    return database.read(lambda tx: tx.execute(text(query)).scalar())


def finished_job(jobs: Jobs, *, fails: bool = False) -> str:
    """A job with everything that can be kept; ``fails``: in its second stage."""
    job = new_job()
    media = [{**ref(input_key(job.job_id, 0)).model_dump(), "media_type": "audio/wav"}]
    job = replace(job, media=media)
    submit_one(jobs, job)
    register_each(jobs, lease_s=10_000)
    (claimed,) = claim(jobs, "first")
    assert claimed.media == media
    artifact = StoredArtifact("a.txt", "text/plain", ref(artifact_key(job.job_id, "first", 1, "a.txt")))
    payload = ref(payload_key(job.job_id, "first", 1))
    jobs.report([done(claimed, "first", payload=payload, artifacts=[artifact])])
    (claimed,) = claim(jobs, "second")
    assert claimed.media == ()
    if fails:
        fail(jobs, failed(claimed, "second", ModelError("no")))
    else:
        jobs.report([done(claimed, "second")])
    jobs.forget_garbage([found.id for found in jobs.garbage()])
    return job.job_id


def collect(jobs: Jobs) -> list[str]:
    found = jobs.garbage()
    jobs.forget_garbage([each.id for each in found])
    return [each.what for each in found]


def test_each_kind_has_its_own_time(jobs: Jobs, database: Database) -> None:
    job_id = finished_job(jobs, fails=True)
    jobs.prune(KEEP)
    assert collect(jobs) == []
    pass_time(database, 101)
    jobs.prune(KEEP)
    assert collect(jobs) == [f"{job_prefix(job_id)}payloads/"]
    with pytest.raises(Conflict, match="retry from stage first"):
        jobs.retry(job_id)
    pass_time(database, 100)
    jobs.prune(KEEP)
    assert collect(jobs) == [f"{job_prefix(job_id)}inputs/"]
    with pytest.raises(Conflict, match="submit it anew"):
        jobs.retry(job_id, "first")
    assert jobs.artifact(job_id, "a.txt").media_type == "text/plain"
    pass_time(database, 100)
    jobs.prune(KEEP)
    assert collect(jobs) == [f"{job_prefix(job_id)}artifacts/"]
    with pytest.raises(Gone):
        jobs.artifact(job_id, "a.txt")
    assert event_types(jobs, job_id) == ["job.failed"]
    pass_time(database, 100)
    jobs.prune(KEEP)
    assert (collect(jobs), event_types(jobs, job_id)) == ([], [])
    assert jobs.get(job_id).status == JobState.FAILED
    pass_time(database, 600)
    jobs.prune(KEEP)
    assert collect(jobs) == [job_prefix(job_id)]
    with pytest.raises(NotFound):
        jobs.get(job_id)
    assert jobs.prune(KEEP) == PruneResult()


def test_payloads_of_completed_jobs_go_at_once(jobs: Jobs) -> None:
    job_id = finished_job(jobs)
    jobs.prune(KEEP)
    assert collect(jobs) == []  # it went with its reader, and no attempt was lost
    assert jobs.get(job_id).stages[0].payload_bytes is not None
    with pytest.raises(Conflict, match="retry from stage first"):
        jobs.retry(job_id, "second")


@pytest.mark.parametrize("lost", [False, True])
def test_a_job_that_completed_is_looked_at_when_something_of_it_is_due(
    jobs: Jobs, database: Database, lost: bool
) -> None:
    patient = Jobs(database, prune_after_s=KEEP.without_payloads_s)
    submit_one(patient, new_job({"first": []}))
    register(patient, "w", lease_s=10_000)
    if lost:  # it may have left a payload that nobody knows of
        (claimed,) = claim(patient, "w")
        release(patient, [(claimed.stage_run_id, claimed.attempt)], "w")
    complete_all(patient, "w")
    assert patient.prune(KEEP).checked == (1 if lost else 0)
    pass_time(database, KEEP.without_payloads_s + 1)
    assert patient.prune(KEEP) == PruneResult(checked=1, inputs=1)


def test_nothing_that_runs_is_pruned(jobs: Jobs, database: Database) -> None:
    job_id = finished_job(jobs, fails=True)
    waiting, running = new_job(), new_job()
    submit_one(jobs, running)
    claim(jobs, "first")
    submit_one(jobs, waiting)
    jobs.retry(job_id)
    pass_time(database, 5000)
    assert jobs.prune(KEEP).checked == 0
    assert collect(jobs) == []
    assert {jobs.get(each).status.is_final for each in (job_id, waiting.job_id, running.job_id)} == {False}


def test_prune_takes_no_more_than_it_is_told(database: Database) -> None:
    jobs = Jobs(database)
    ids = [finished_job(jobs) for _ in range(5)]
    pass_time(database, 2000)
    assert [jobs.prune(KEEP, at_most=2).jobs for _ in range(4)] == [2, 2, 1, 0]
    assert sorted(collect(jobs)) == sorted(job_prefix(job_id) for job_id in ids)
    with database.begin() as tx:
        for table in ("jobs", "stage_runs", "artifacts", "attempt_errors", "events", "garbage"):
            assert tx.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_delete(jobs: Jobs) -> None:
    job_id = finished_job(jobs)
    jobs.delete(job_id)
    with pytest.raises(NotFound):
        jobs.get(job_id)
    jobs.delete(job_id)  # its objects still wait: deleted already
    assert collect(jobs) == [job_prefix(job_id)]
    with pytest.raises(NotFound):
        jobs.delete(job_id)
    active = new_job()
    submit_one(jobs, active)
    with pytest.raises(Conflict, match="cancel it first"):
        jobs.delete(active.job_id)
    with pytest.raises(NotFound):
        jobs.delete("job-\x00")


def test_orphans_are_what_nothing_refers_to(jobs: Jobs, database: Database) -> None:
    job_id = finished_job(jobs, fails=True)
    running = new_job()
    register(jobs, "w2", lease_s=10_000)
    submit_one(jobs, running)
    claim(jobs, "w2")
    kept = [
        input_key(job_id, 0),
        payload_key(job_id, "first", 1),
        artifact_key(job_id, "first", 1, "a.txt"),
        payload_key(running.job_id, "first", 1),  # of the attempt that runs
        artifact_key(running.job_id, "first", 1, "a.txt"),
    ]
    lost = [
        input_key("job-unknown", 0),
        payload_key("job-unknown", "first", 1),
        payload_key(job_id, "first", 2),
        artifact_key(job_id, "second", 1, "a.txt"),
        payload_key(running.job_id, "first", 0),
    ]
    assert jobs.orphans([*kept, *lost, "not/ours"]) == set(lost)
    assert jobs.orphans([]) == set()


def test_the_backlog_are_the_jobs_that_nobody_has_started(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    submit_one(jobs, new_job(tenant="acme"))
    register(jobs, "w")
    submit_one(jobs, new_job())
    assert jobs.backlog() == {("echo", "default"): 2, ("echo", "acme"): 1}
    (claimed,) = claim(jobs, "w", 1)
    assert jobs.backlog() == {("echo", "default"): 1, ("echo", "acme"): 1}
    fail(jobs, failed(claimed, "w", OutOfMemory()))
    assert jobs.backlog() == {("echo", "default"): 1, ("echo", "acme"): 1}, "an attempt that failed was a start"
    assert jobs.get(claimed.job_id).stages[0].status == StageRunState.QUEUED


def test_old_events_go_in_whatever_order_they_were_written(jobs: Jobs, database: Database) -> None:
    """A clock that went back must not hold up the pruner for as long as that."""
    old, young = (submit_one(jobs, new_job()).job_id for _ in range(2))
    for job_id in (young, old):  # of these the young one's event is written first
        jobs.cancel(job_id)
    with database.begin() as tx:
        tx.execute(text("UPDATE events SET at = at - 11 WHERE job_id = :old"), {"old": old})
    events_alone = Retention(payloads_s=100, inputs_s=100, artifacts_s=100, events_s=10, jobs_s=100)
    jobs.prune(events_alone, at_most=1)
    assert (jobs.events(old), event_types(jobs, young)) == ([], ["job.cancelled"])


def test_events_are_numbered_within_their_job(jobs: Jobs, database: Database) -> None:
    """The numbers of a job's events tell nothing of other jobs, and grow even where all earlier ones are pruned."""
    job_id, other = (submit_one(jobs, new_job()).job_id for _ in range(2))
    jobs.cancel(job_id)
    jobs.cancel(other)
    jobs.retry(job_id)
    jobs.cancel(job_id)
    numbers = [event.id for event in jobs.events(job_id)]
    assert numbers == [1, 2, 3]
    assert [event.id for event in jobs.events(other)] == [1]
    pass_time(database, 11)
    events_alone = Retention(payloads_s=100, inputs_s=100, artifacts_s=100, events_s=10, jobs_s=100)
    while jobs.prune(events_alone).events:
        pass
    assert jobs.events(job_id) == []
    jobs.retry(job_id)
    [event] = jobs.events(job_id)
    assert event.id > numbers[-1]
