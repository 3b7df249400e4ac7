"""Forks in SQL, on both databases, with answers heard and lost: what they take over, and what both jobs keep."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from omni_jobs.database.database import Database
from omni_jobs.errors import Conflict, IdempotencyKeyReused, ModelError, NotFound, Unauthenticated
from omni_jobs.jobs import Claim, Jobs, NewJob, Retention, StoredArtifact
from omni_jobs.new_job import Reuse
from omni_jobs.priority import Priority
from omni_jobs.states import JobState, StageRunState
from omni_jobs.storage import ObjectRef, artifact_key, job_prefix, payload_key
from omni_jobs.tenants.tenant_store import Tenants
from tests.integration.job_steps import (
    CHAIN,
    DIAMOND,
    claim,
    complete_all,
    counted_bytes,
    done,
    fail,
    failed,
    new_job,
    register,
    register_each,
    stages,
    stored_bytes,
    submit_one,
)

HOUR = 3600.0
KEEP_AN_HOUR = Retention(payloads_s=HOUR, inputs_s=HOUR, artifacts_s=HOUR, events_s=HOUR, jobs_s=HOUR)


@pytest.fixture
def jobs(jobs_or_forgetful: Jobs) -> Jobs:
    return jobs_or_forgetful


def ref(key: str) -> ObjectRef:
    return ObjectRef(key=key, size=100, digest="xxh3:" + "0" * 32)


def run(jobs: Jobs, stage: str, *, is_inline: bool = False) -> Claim:
    """Run the one stage run that waits for the stage's worker: it makes a payload, an artifact and a text."""
    [claimed] = claim(jobs, stage)
    job_id, attempt = claimed.job_id, claimed.attempt
    payload: dict[str, Any] = {"payload": ref(payload_key(job_id, stage, attempt))}
    if is_inline:
        payload = {"inline_payload": b"x" * 100}
    artifact = StoredArtifact(f"{stage}.png", "image/png", ref(artifact_key(job_id, stage, attempt, f"{stage}.png")))
    made = done(
        claimed,
        stage,
        payload_bytes=100,
        artifacts=[artifact],
        result={"text": f"by {stage}"},
        finish_reason="stop",
        warnings=[{"code": "short", "message": stage}],
        **payload,
    )
    assert jobs.report([made])[0].won
    return claimed


def ended(jobs: Jobs, graph: Iterable[str] = CHAIN, **changes: Any) -> NewJob:
    """A job that has completed, and keeps its payloads."""
    job = new_job(**{"keeps_payloads": True, **changes})
    submit_one(jobs, job)
    for stage in graph:
        run(jobs, stage)
    return job


def fork_of(origin: NewJob, reused: Iterable[str], **changes: Any) -> NewJob:
    """A fork that differs in its seed."""
    reuse = Reuse(origin.job_id, frozenset(reused))
    return replace(origin, **{"job_id": new_job().job_id, "seed": 5, "reuse": reuse, **changes})


def test_a_fork_begins_behind_the_stages_that_it_takes_over(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs)
    before = jobs.get(origin.job_id)
    fork = fork_of(origin, ["first"])
    result = jobs.fork(fork)
    assert (result.job_id, result.created, set(result.queues)) == (fork.job_id, True, {"echo.second"})
    view = jobs.get(fork.job_id)
    assert (view.status, view.forked_from, view.seed) == (JobState.QUEUED, origin.job_id, 5)
    assert stages(jobs, fork.job_id) == {"first": "succeeded", "second": "queued"}
    assert (view.stages[0].attempt, view.stages[0].worker, view.stages[0].finish_reason) == (0, None, "stop")
    assert view.result_so_far == {"text": "by first"}
    assert [artifact.name for artifact in view.artifacts] == ["first.png"]
    assert [warning.message for warning in view.warnings] == ["first"]
    assert claim(jobs, "first") == []
    claimed = run(jobs, "second")
    assert claimed.upstream == {"first": ref(payload_key(origin.job_id, "first", 1))}
    assert (claimed.seed, claimed.request) == (5, origin.request)
    view = jobs.get(fork.job_id)
    assert (view.status, view.result) == (JobState.COMPLETED, before.result)
    assert {artifact.name: artifact.digest for artifact in view.artifacts}.keys() == {"first.png", "second.png"}
    assert jobs.get(origin.job_id) == before


def test_a_small_payload_stands_in_both_rows(jobs: Jobs) -> None:
    register_each(jobs)
    origin = new_job()
    submit_one(jobs, origin)
    run(jobs, "first", is_inline=True)
    jobs.cancel(origin.job_id)
    jobs.fork(fork_of(origin, ["first"]))
    jobs.delete(origin.job_id)
    assert run(jobs, "second").upstream == {"first": b"x" * 100}


def test_a_job_that_still_runs_is_forked(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    origin = new_job()
    submit_one(jobs, origin)
    run(jobs, "first")
    [running] = claim(jobs, "second")
    fork = fork_of(origin, ["first"])
    jobs.fork(fork)
    assert jobs.report([done(running, "second")])[0].won
    assert jobs.get(origin.job_id).status == JobState.COMPLETED
    key = payload_key(origin.job_id, "first", 1)
    notes = [note for note in jobs.garbage() if note.what == key]
    assert len(notes) == 1  # its last reader has succeeded
    assert jobs.still_shared(notes) == {key}
    assert run(jobs, "second").job_id == fork.job_id
    notes = [note for note in jobs.garbage() if note.what == key]
    assert {note.owner for note in notes} == {origin.job_id, fork.job_id}
    assert jobs.still_shared(notes) == set()
    assert stored_bytes(database) == counted_bytes(database)


def test_a_stage_that_has_not_succeeded_is_not_taken_over(jobs: Jobs) -> None:
    register_each(jobs, DIAMOND)
    origin = new_job(DIAMOND)
    submit_one(jobs, origin)
    run(jobs, "a")
    claim(jobs, "b")
    with pytest.raises(Conflict, match=r"stage b of job .* is running") as refused:
        jobs.fork(fork_of(origin, ["a", "b"]))
    assert refused.value.field == "from_stage"
    assert [view.id for view in jobs.list().jobs] == [origin.job_id]


def test_a_payload_that_is_not_kept_is_refused_with_the_stage_to_fork_from(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs, keeps_payloads=False)
    with pytest.raises(Conflict, match=r"payload of stage first .* is not kept any longer: fork from stage first"):
        jobs.fork(fork_of(origin, ["first"]))
    jobs.fork(fork_of(origin, []))
    assert run(jobs, "first").attempt == 1


def test_an_artifact_that_the_fork_is_to_have_and_that_is_not_kept_is_named(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs)
    retention = replace(KEEP_AN_HOUR, artifacts_s=0.0)
    jobs.hasten(retention)
    jobs.prune(retention)
    assert jobs.get(origin.job_id).artifacts == []
    jobs.forget_garbage([note.id for note in jobs.garbage()])
    reuse = Reuse(origin.job_id, frozenset(["first"]), artifacts={"first": "first"})
    with pytest.raises(Conflict, match=r"these are not kept any longer: first of stage first; fork from"):
        jobs.fork(fork_of(origin, (), reuse=reuse))
    with pytest.raises(Conflict, match=r"these are not kept any longer: first of stage first; retry from"):
        jobs.retry(origin.job_id, "second", {"first": "first"})
    assert [view.id for view in jobs.list().jobs] == [origin.job_id]
    jobs.fork(fork_of(origin, ["first"]))  # which has none to have
    assert set(jobs.retry(origin.job_id, "first", {"first": "first"})) == {"echo.first"}


def test_a_stage_whose_payload_nobody_took_left_none(jobs: Jobs) -> None:
    register(jobs, "first", "first")
    origin = new_job({"first": []}, keeps_payloads=True)
    submit_one(jobs, origin)
    complete_all(jobs, "first")
    longer = fork_of(origin, ["first"], stages=new_job().stages, modalities=["text", "audio"])
    with pytest.raises(Conflict, match=r"stage first of job .* left no payload"):
        jobs.fork(longer)


def test_only_what_follows_runs_anew_in_a_graph(jobs: Jobs) -> None:
    register_each(jobs, DIAMOND)
    origin = ended(jobs, DIAMOND, stages=new_job(DIAMOND).stages)
    fork = fork_of(origin, ["a", "c"])
    assert set(jobs.fork(fork).queues) == {"echo.b"}
    assert stages(jobs, fork.job_id) == {"a": "succeeded", "b": "queued", "c": "succeeded", "d": "pending"}
    run(jobs, "b")
    taken = run(jobs, "d").upstream
    assert taken == {
        "b": ref(payload_key(fork.job_id, "b", 1)),
        "c": ref(payload_key(origin.job_id, "c", 1)),
    }


@pytest.mark.parametrize("among_many", [False, True])
@pytest.mark.parametrize("first_to_go", ["origin", "fork", "fork of the fork"])
def test_an_object_is_kept_until_the_last_job_lets_go_of_it(jobs: Jobs, first_to_go: str, among_many: bool) -> None:
    register_each(jobs)
    origin = ended(jobs)
    fork = fork_of(origin, ["first"])
    jobs.fork(fork)
    run(jobs, "second")
    again = fork_of(fork, ["first"])
    jobs.fork(again)
    run(jobs, "second")
    in_order = {"origin": origin, "fork": fork, "fork of the fork": again}
    in_order = {first_to_go: in_order.pop(first_to_go), **in_order}
    shared = {payload_key(origin.job_id, "first", 1), artifact_key(origin.job_id, "first", 1, "first.png")}
    for number, job in enumerate(in_order.values(), start=1):
        assert jobs.orphans(shared) == set()
        if among_many:
            assert jobs.delete_all([job.job_id]) == {job.job_id}
        else:
            jobs.delete(job.job_id)
        notes = jobs.garbage()
        assert job_prefix(job.job_id) in {note.what for note in notes}
        if job is not origin:
            assert shared <= {note.what for note in notes if note.owner == job.job_id}
        assert jobs.still_shared(notes) == (set() if number == 3 else {note.what for note in notes} & shared)
    assert jobs.orphans(shared) == shared


def test_the_pruner_drops_the_payloads_of_each_job_at_its_time(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    origin = ended(jobs)
    fork = fork_of(origin, ["first"])
    jobs.fork(fork)
    jobs.prune(KEEP_AN_HOUR)
    key = payload_key(origin.job_id, "first", 1)
    with database.begin() as tx:
        past = "UPDATE jobs SET finished_at = finished_at - 4000, prune_at = 0 WHERE finished_at IS NOT NULL"
        tx.exec_driver_sql(past)
    keeping = replace(KEEP_AN_HOUR, jobs_s=10 * HOUR, artifacts_s=10 * HOUR)
    jobs.prune(keeping)
    assert jobs.orphans([key]) == set()  # the fork waits, and needs it
    with pytest.raises(Conflict, match="not kept any longer"):
        jobs.fork(fork_of(origin, ["first"]))
    assert run(jobs, "second").upstream == {"first": ref(key)}
    with database.begin() as tx:
        tx.exec_driver_sql(past)
    jobs.prune(keeping)
    assert jobs.orphans([key]) == {key}
    notes = [note for note in jobs.garbage() if note.what == key]
    assert fork.job_id in {note.owner for note in notes}
    assert jobs.still_shared(notes) == set()
    assert stored_bytes(database) == counted_bytes(database)


def test_each_job_counts_what_it_keeps(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    origin = ended(jobs)
    fork = fork_of(origin, ["first"], tenant="other")
    jobs.fork(fork)
    assert stored_bytes(database) == counted_bytes(database)
    assert counted_bytes(database)["other"] > 200  # a payload and an artifact
    run(jobs, "second")
    assert stored_bytes(database) == counted_bytes(database)
    jobs.delete(origin.job_id)
    assert stored_bytes(database) == counted_bytes(database)
    jobs.delete(fork.job_id)
    assert stored_bytes(database) == counted_bytes(database) == {}


def test_a_fork_is_written_once_for_a_key(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs)
    fork = fork_of(origin, ["first"], idempotency_key="k", request_digest="fork")
    assert jobs.fork(fork).created
    again = fork_of(origin, ["first"], idempotency_key="k", request_digest="fork")
    repeated = jobs.fork(again)
    assert (repeated.job_id, repeated.created) == (fork.job_id, False)
    with pytest.raises(IdempotencyKeyReused):
        jobs.fork(fork_of(origin, ["first"], idempotency_key="k", request_digest="another"))
    assert {view.id for view in jobs.list().jobs} == {origin.job_id, fork.job_id}
    assert len(claim(jobs, "second")) == 1


def test_a_fork_of_a_job_that_was_deleted_is_not_found(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs)
    jobs.delete(origin.job_id)
    with pytest.raises(NotFound):
        jobs.fork(fork_of(origin, ["first"]))
    with pytest.raises(NotFound):
        jobs.origin(origin.job_id)


def test_an_origin_is_seen_by_its_tenant_alone(jobs: Jobs) -> None:
    register_each(jobs)
    origin = ended(jobs, tenant="acme")
    assert jobs.origin(origin.job_id, "acme").seed == origin.seed
    with pytest.raises(NotFound):
        jobs.origin(origin.job_id, "other")


def test_a_fork_of_a_tenant_without_a_row_is_refused_where_tenants_are_known(database: Database) -> None:
    jobs = Jobs(database)
    register_each(jobs)
    origin = ended(jobs)
    with pytest.raises(Unauthenticated):
        Jobs(database, only_known_tenants=True).fork(fork_of(origin, ["first"]))


def test_a_fork_is_held_by_its_tenants_quota(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    origin = ended(jobs, tenant="acme")
    Tenants(database).create("acme", limits={"running_jobs": 1})
    submit_one(jobs, new_job(tenant="acme"))
    fork = fork_of(origin, ["first"], priority=Priority.LOW)
    assert jobs.fork(fork).queues == set()
    assert jobs.get(fork.job_id).stages[1].status == StageRunState.PENDING
    for stage in CHAIN:
        complete_all(jobs, stage)
    assert jobs.get(fork.job_id).stages[1].status == StageRunState.QUEUED
    assert run(jobs, "second").job_id == fork.job_id


def test_a_fork_is_retried_from_a_stage_that_it_took_over(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    origin = ended(jobs)
    fork = fork_of(origin, ["first"])
    jobs.fork(fork)
    [claimed] = claim(jobs, "second")
    fail(jobs, failed(claimed, "second", ModelError()))
    assert jobs.retry(fork.job_id) == {"echo.second"}
    assert claim(jobs, "second")[0].upstream == {"first": ref(payload_key(origin.job_id, "first", 1))}
    jobs.cancel(fork.job_id)
    register(jobs, "second 2", "second", slot="second")  # its attempt ends, and the job with it
    assert jobs.get(fork.job_id).status == JobState.CANCELLED
    assert jobs.retry(fork.job_id, "first") == {"echo.first"}
    register(jobs, "second", "second", slot="second")
    run(jobs, "first")
    assert run(jobs, "second").upstream == {"first": ref(payload_key(fork.job_id, "first", 1))}
    assert jobs.orphans([payload_key(origin.job_id, "first", 1)]) == set()
    assert stored_bytes(database) == counted_bytes(database)


def test_a_fork_has_no_media_of_its_own(jobs: Jobs, database: Database) -> None:
    register_each(jobs)
    media = [{**ref("jobs/00/x/inputs/0").model_dump(), "media_type": "image/png"}]
    origin = ended(jobs, media=media)
    fork = fork_of(origin, ["first"])
    jobs.fork(fork)
    run(jobs, "second")
    with pytest.raises(Conflict, match=r"media .* are not kept"):
        jobs.retry(fork.job_id, "first")
    assert stored_bytes(database) == counted_bytes(database)
