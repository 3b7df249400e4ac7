"""Every transition of omni_jobs.jobs, on SQLite and on PostgreSQL."""

import random
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, event, text

from omni_jobs.database.database import Database
from omni_jobs.errors import (
    DatabaseUnavailable,
    Fenced,
    IdempotencyKeyReused,
    InvalidRequest,
    ModelError,
    NotFound,
    OutOfMemory,
    SlotTaken,
    StageError,
)
from omni_jobs.identity import PipelineId, StageId
from omni_jobs.jobs import (
    Claim,
    Claims,
    Completion,
    DatabasePresence,
    Failure,
    JobFilter,
    Jobs,
    NewWorker,
    Outcome,
    ProgressReport,
    RescueResult,
    StoredArtifact,
    SubmitResult,
    as_written,
    new_job_id,
)
from omni_jobs.states import JobState, StageRunState
from tests.integration.job_steps import (
    ANY_SCRIPT,
    DIAMOND,
    REF,
    TWICE,
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
from tests.services.postgres import until_one_waits_for_a_lock

# submit


def test_submit_queues_the_first_stages(jobs: Jobs) -> None:
    job = new_job(DIAMOND, metadata={"user": "u"})
    submitted = submit_one(jobs, job)
    assert submitted.created
    assert submitted.queues == {"echo.a"}
    view = jobs.get(job.job_id)
    assert view.id == job.job_id
    assert view.status == JobState.QUEUED
    assert view.metadata == {"user": "u"}
    assert view.seed == 2**63 - 1
    assert view.started_at is None
    assert view.created_at.utcoffset() is not None
    assert stages(jobs, job.job_id) == {"a": "queued", "b": "pending", "c": "pending", "d": "pending"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"graph": DIAMOND, "metadata": {"user": ANY_SCRIPT}, "tenant": "t", "modalities": ["text", "audio"]},
        {"graph": {"second": ["first"]}, "seed": 0, "expires_in_s": 90.25},
        {"expires_at": 4e9 + 0.1},
    ],
    ids=["plain", "diamond", "limited", "dated"],
)
def test_a_new_job_reads_as_it_was_written(database: Database, changes: dict[str, Any]) -> None:
    job = new_job(**changes)
    for stage in job.stages:
        register(Jobs(database), f"w-{stage.name}", stage.name)
    submitted = submit_one(Jobs(database), job)
    assert submitted.created_at is not None
    found = Jobs(database).get(job.job_id)
    assert found.waiting is not None
    assert as_written(job, submitted.created_at) == found.model_copy(update={"waiting": None})


def test_a_job_that_may_have_been_there_has_no_time_of_its_own(database: Database) -> None:
    jobs, job = Jobs(database), new_job()
    first = submit_one(jobs, job)
    assert submit_one(jobs, job) == replace(first, created_at=None, job=None)


def test_inputs_outside_the_job_are_not_waited_for(jobs: Jobs) -> None:
    job = new_job({"second": ["first"]})
    assert submit_one(jobs, job).queues == {"echo.second"}


def test_ids_sort_by_time() -> None:
    ids = [new_job_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert ids[0] < ids[-1]
    assert all(len(job_id) == 36 and job_id[16] == "7" for job_id in ids)


def test_an_idempotency_key_names_one_job(jobs: Jobs) -> None:
    first = submit_one(jobs, new_job(idempotency_key="k"))
    again = submit_one(jobs, new_job(idempotency_key="k"))
    assert first.created
    assert (again.job_id, again.created, list(again.queues)) == (first.job_id, False, [])
    with pytest.raises(IdempotencyKeyReused) as caught:
        submit_one(jobs, new_job(request_digest="other", idempotency_key="k"))
    assert caught.value.field == "Idempotency-Key"
    assert len(jobs.list().jobs) == 1


def test_an_idempotency_key_used_at_once_names_one_job(jobs: Jobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit_one(jobs, new_job(idempotency_key="k")), range(24)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1


# Not on SQLite, where nobody else writes while a submit is open.
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_job_that_is_deleted_while_its_key_is_used_again(jobs: Jobs, database: Database) -> None:
    first = submit_one(jobs, new_job(idempotency_key="k"))
    deleted = threading.Event()

    @event.listens_for(database._engine, "before_cursor_execute")
    def delete(_: Connection, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT jobs.id, jobs.request_digest") and not deleted.is_set():
            deleted.set()
            with database.begin() as other:
                for table in ("stage_runs", "jobs"):
                    column = "id" if table == "jobs" else "job_id"
                    other.execute(text(f"DELETE FROM {table} WHERE {column} = :id"), {"id": first.job_id})

    refused, neighbour = jobs.submit_all([new_job(idempotency_key="k"), new_job()])
    assert deleted.is_set()
    assert isinstance(refused, DatabaseUnavailable)
    assert isinstance(neighbour, SubmitResult)
    assert neighbour.created
    assert submit_one(jobs, new_job(idempotency_key="k")).created


def test_an_idempotency_key_is_its_tenants_own(jobs: Jobs) -> None:
    first = submit_one(jobs, new_job(tenant="a", idempotency_key="k"))
    asked = {("a", "k"), ("b", "k"), ("a", "other")}
    assert jobs.known_keys(asked) == {("a", "k")}
    assert jobs.known_submits(asked) == {("a", "k"): (first.job_id, new_job().request_digest)}
    wishes = [
        new_job(tenant="b", request_digest="other", idempotency_key="k"),
        new_job(tenant="a", idempotency_key="k"),
        new_job(tenant="a", request_digest="other", idempotency_key="k"),
        new_job(tenant="c", idempotency_key="k"),
    ]
    other, again, reused, third = jobs.submit_all(wishes)
    assert isinstance(reused, IdempotencyKeyReused)
    assert [answer.created for answer in (other, again, third)] == [True, False, True]  # type: ignore[union-attr]
    assert again.job_id == first.job_id  # type: ignore[union-attr]
    assert len({first.job_id, other.job_id, third.job_id}) == 3  # type: ignore[union-attr]
    assert jobs.known_keys({("a", "k"), ("b", "k")}) == {("a", "k"), ("b", "k")}
    assert jobs.known_submits({("b", "k")}) == {("b", "k"): (other.job_id, "other")}  # type: ignore[union-attr]


def test_many_at_once_are_answered_one_by_one(jobs: Jobs) -> None:
    known = submit_one(jobs, new_job(idempotency_key="known"))
    wishes = [
        new_job(),
        new_job(idempotency_key="known"),
        new_job(request_digest="other", idempotency_key="known"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job({"only": []}, idempotency_key="twice"),
        new_job(DIAMOND, idempotency_key="new"),
    ]
    first, again, reused, one, other, diamond = jobs.submit_all(wishes)
    assert isinstance(reused, IdempotencyKeyReused)
    assert reused.field == "Idempotency-Key"
    assert [answer.created for answer in (first, again, diamond)] == [True, False, True]  # type: ignore[union-attr]
    assert isinstance(one, SubmitResult)
    assert isinstance(other, SubmitResult)
    assert (again.job_id, one.job_id) == (known.job_id, other.job_id)  # type: ignore[union-attr]
    assert [one.created, other.created].count(True) == 1
    assert len(jobs.list().jobs) == 4
    for answer, queue in ((first, "echo.first"), (diamond, "echo.a")):
        assert isinstance(answer, SubmitResult)
        assert answer.queues == {queue}
    assert [queue for answer in (one, other) for queue in answer.queues] == ["echo.only"]
    assert stages(jobs, diamond.job_id)["a"] == "queued"  # type: ignore[union-attr]
    assert jobs.submit_all([]) == []


def test_batches_that_share_keys_make_each_job_once(jobs: Jobs) -> None:
    keys = [f"k{n}" for n in range(20)]

    def submit(seed: int) -> list[str]:
        mine = random.Random(seed).sample(keys, len(keys))
        answers = jobs.submit_all([new_job(idempotency_key=key) for key in mine])
        return [answer.job_id for answer in answers if isinstance(answer, SubmitResult) and answer.created]

    with ThreadPoolExecutor(4) as pool:
        made = [job_id for batch in pool.map(submit, range(12)) for job_id in batch]
    assert len(made) == len(set(made)) == len(keys)


# complete


def test_completing_every_stage_completes_the_job(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register_each(jobs)
    (claimed,) = claim(jobs, "first")
    made = {"inline_payload": b"abc", "payload_bytes": 3, "result": {"a": 1, "b": 1}}
    (outcome,) = jobs.report([done(claimed, "first", **made)])
    assert outcome.won
    assert jobs.get(submitted.job_id).status == JobState.IN_PROGRESS
    assert outcome.queues == {"echo.second"}
    (claimed,) = claim(jobs, "second")
    assert claimed.upstream == {"first": b"abc"}
    assert not claimed.has_successors
    artifact = StoredArtifact("a b.wav", "audio/wav", REF)
    (outcome,) = jobs.report([done(claimed, "second", artifacts=[artifact], result={"b": 2})])
    assert outcome.won
    assert not outcome.queues
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.COMPLETED
    assert view.result == {"a": 1, "b": 2}
    assert view.finished_at is not None
    assert [stage.payload_bytes for stage in view.stages] == [3, 0]
    assert view.artifacts[0].url == f"/v1/jobs/{submitted.job_id}/artifacts/a%20b.wav"
    assert jobs.artifact(submitted.job_id, "a b.wav").ref == REF


def test_a_stored_payload_reaches_the_next_stage_as_its_ref(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    register_each(jobs)
    (claimed,) = claim(jobs, "first")
    jobs.report([done(claimed, "first", payload=REF, payload_bytes=REF.size)])
    assert claim(jobs, "second")[0].upstream == {"first": REF}


def test_a_repeated_completion_has_the_same_answer(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    completion = done(claimed, "w", artifacts=[StoredArtifact("a", "text/plain", REF)])
    assert jobs.report([completion]) == jobs.report([completion])
    assert jobs.report([completion, completion])[1].won


def test_only_the_claim_that_holds_completes(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    wrong = [
        Completion(claimed.stage_run_id, claimed.attempt, "other"),
        Completion(claimed.stage_run_id, claimed.attempt + 1, "w"),
        Completion(4711, 1, "w"),
    ]
    outcomes = jobs.report(wrong)
    assert [outcome.won for outcome in outcomes] == [False, False, False]
    assert stages(jobs, submitted.job_id)["first"] == "running"


def test_inputs_that_end_at_once_queue_their_consumer_once(jobs: Jobs) -> None:
    register_each(jobs, DIAMOND)
    both = threading.Barrier(2)

    def complete(stage: str, claimed: Claim) -> Collection[str]:
        both.wait()
        return jobs.report([done(claimed, stage)])[0].queues

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submitted = submit_one(jobs, new_job(DIAMOND))
            assert complete_all(jobs, "a") == {"echo.b", "echo.c"}
            parallel = [*claim(jobs, "b"), *claim(jobs, "c")]
            rung = [queue for found in pool.map(complete, "bc", parallel) for queue in found]
            assert rung == ["echo.d"]
            complete_all(jobs, "d")
            assert jobs.get(submitted.job_id).status == JobState.COMPLETED


@pytest.mark.parametrize("others", [0, 1, 20])
def test_what_ends_and_what_comes_in_its_place_are_one_transaction(jobs_or_forgetful: Jobs, others: int) -> None:
    """Its answer may be lost: then another try gives the same."""
    jobs = jobs_or_forgetful
    register_each(jobs, slots=100)
    submit_one(jobs, new_job())
    (ended,) = claim(jobs, "first")
    wanted = [new_job() for _ in range(others)]
    jobs.submit_all(wanted)
    completions = [done(ended, "first", inline_payload=b"abc")]
    claims, *_, [outcome] = jobs.claim("first", 100, reports=completions)
    assert outcome.won
    assert outcome.queues == {"echo.second"}
    assert [(each.job_id, each.attempt) for each in claims] == [(job.job_id, 1) for job in wanted]
    again = jobs.claim("first", 100, reports=completions, again=True)
    assert again == Claims(claims, more=others > 0, more_high=others > 0, outcomes=[outcome])
    (successor,) = claim(jobs, "second")
    assert successor.upstream == {"first": b"abc"}
    none, *_, outcomes = jobs.claim("first", 100, reports=[done(each, "first") for each in claims])
    assert [each.won for each in outcomes] == [True] * others
    assert not none
    assert stages(jobs, ended.job_id) == {"first": "succeeded", "second": "running"}


def test_a_fenced_worker_completes_nothing_with_its_claim(jobs_or_forgetful: Jobs) -> None:
    """What ended may be reported again alone."""
    jobs = jobs_or_forgetful
    register(jobs, "w")
    submit_one(jobs, new_job({"first": []}))
    (ended,) = claim(jobs, "w")
    waiting = submit_one(jobs, new_job())
    with jobs._db.begin() as tx:
        tx.execute(text("DELETE FROM workers"))
    with pytest.raises(Fenced):
        jobs.claim("w", 5, reports=[done(ended, "w")])
    assert stages(jobs, waiting.job_id)["first"] == "queued"
    assert stages(jobs, ended.job_id)["first"] == "running"
    assert jobs.report([done(ended, "w")])[0].won
    assert jobs.get(ended.job_id).status == JobState.COMPLETED


def test_what_an_end_cancels_is_not_claimed_with_it(jobs: Jobs) -> None:
    """The stage runs of one job on one worker: the end of the first fails the job, and the second is cancelled."""
    artifact = StoredArtifact("a", "text/plain", REF)
    stage_run = {"a": [], "b": ["a"], "c": ["a"]}
    register_each(jobs, stage_run)
    failing, other = submit_one(jobs, new_job(stage_run)), submit_one(jobs, new_job({"b": []}))
    jobs.report([done(each, "a", artifacts=[artifact]) for each in claim(jobs, "a")])
    (b,) = claim(jobs, "b", 1)
    claims, *_, outcomes = jobs.claim("b", 100, reports=[done(b, "b", artifacts=[artifact])])
    assert [outcome.won for outcome in outcomes] == [False]
    assert stages(jobs, failing.job_id) == {"a": "succeeded", "b": "failed", "c": "cancelled"}
    assert [each.job_id for each in claims] == [other.job_id]
    assert claim(jobs, "c") == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_stage_runs_written_since_the_jobs_were_locked_are_passed_over(database: Database, jobs: Jobs) -> None:
    register(jobs, "w")
    jobs.submit_all([new_job(), new_job()])
    claims = claim(jobs, "w")
    completions = [done(claims[0], "w"), replace(done(claims[1], "w"), stage_run_id=10**9)]
    with ThreadPoolExecutor(1) as pool:
        with database.begin() as tx:  # it has the first job locked, and another stage run appears with its end
            tx.execute(text("UPDATE jobs SET tenant = 'x' WHERE id = :id"), {"id": claims[0].job_id})
            tx.execute(text("UPDATE stage_runs SET id = 1000000000 WHERE id = :id"), {"id": claims[1].stage_run_id})
            completing = pool.submit(jobs.report, completions)
            until_one_waits_for_a_lock(database)
        outcomes = completing.result()
    assert [outcome.won for outcome in outcomes] == [True, False]
    assert stages(jobs, claims[1].job_id)["first"] == "running"


def test_an_artifact_name_taken_fails_that_job_alone(jobs: Jobs) -> None:
    register_each(jobs)
    artifact = StoredArtifact("a", "text/plain", REF)
    twice, fine = submit_one(jobs, new_job()), submit_one(jobs, new_job())
    jobs.report([done(claimed, "first", artifacts=[artifact]) for claimed in claim(jobs, "first")])
    claims = claim(jobs, "second")
    outcomes = jobs.report([done(claims[0], "second", artifacts=[artifact]), done(claims[1], "second")])
    assert [outcome.won for outcome in outcomes] == [False, True]
    error = jobs.get(twice.job_id).error
    assert error is not None
    assert (error.stage, error.key) == ("second", "a")
    assert jobs.get(fine.job_id).status == JobState.COMPLETED


def test_a_result_must_be_json() -> None:
    with pytest.raises(StageError) as caught:
        Completion(1, 1, "w", result={"loss": float("nan")})
    assert caught.value.field == "result"


# fail


def test_a_retryable_error_is_tried_again_after_a_pause(jobs_or_forgetful: Jobs, database_url: str) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    outcome = fail(jobs, failed(claimed, "w", OutOfMemory()))
    assert outcome.won
    assert not outcome.queues
    stage = jobs.get(submitted.job_id).stages[0]
    assert (stage.status, stage.reason, stage.attempt) == (StageRunState.QUEUED, "retry_backoff", 1)
    assert [(error.code, error.attempt, error.worker) for error in stage.errors] == [("out_of_memory", 1, "w")]
    assert claim(jobs, "w") == []
    database = Database(database_url)
    pass_time(database, 2.0)
    database.close()
    (claimed,) = claim(jobs, "w")
    assert (claimed.attempt, failures(jobs, claimed)) == (2, {"out_of_memory": 1})
    assert jobs.get(submitted.job_id).stages[0].reason is None


def test_the_last_attempt_fails_the_job(jobs: Jobs, database: Database) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w", lease_s=10_000)
    for _ in range(3):
        (claimed,) = claim(jobs, "w")
        fail(jobs, failed(claimed, "w", OutOfMemory("no room for 12 GiB")))
        pass_time(database, 100)
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert (view.error.code, view.error.message, view.error.stage) == ("out_of_memory", "no room for 12 GiB", "first")
    assert stages(jobs, submitted.job_id) == {"first": "failed", "second": "cancelled"}
    assert [error.attempt for error in view.stages[0].errors] == [1, 2, 3]
    assert view.result is None


def test_a_final_error_fails_the_job_at_once_and_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    failure = failed(claimed, "w", ModelError("bad audio", field="audio", key="k"))
    assert fail(jobs, failure) == fail(jobs, failure)
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.error is not None
    assert (view.error.field, view.error.key) == ("audio", "k")
    assert len(view.stages[0].errors) == 1
    assert not jobs.report([done(claimed, "w")])[0].won
    assert not fail(jobs, Failure(claimed.stage_run_id, 1, "other", ModelError())).won


def test_a_failed_job_stops_what_still_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job(DIAMOND))
    register_each(jobs, DIAMOND)
    complete_all(jobs, "a")
    (b,), (c,) = claim(jobs, "b"), claim(jobs, "c")
    assert jobs.renew("c", 60).wishes.unwanted == []
    fail(jobs, failed(b, "b", ModelError()))
    assert stages(jobs, submitted.job_id) == {"a": "succeeded", "b": "failed", "c": "running", "d": "cancelled"}
    assert jobs.renew("c", 60).wishes.unwanted == [c.stage_run_id]
    (outcome,) = jobs.report([done(c, "c", artifacts=[StoredArtifact("a", "text/plain", REF)])])
    assert not outcome.won
    assert jobs.renew("c", 60).wishes.unwanted == []
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.FAILED
    assert view.stages[2].status == StageRunState.CANCELLED
    assert view.artifacts == []


# release


def test_what_is_released_is_queued_again_without_a_failure(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w1")
    register(jobs, "w2")
    (claimed,) = claim(jobs, "w1")
    release(jobs, [(claimed.stage_run_id, 1)], "w1")
    assert jobs.get(submitted.job_id).stages[0].worker is None
    (again,) = claim(jobs, "w2")
    assert (again.attempt, failures(jobs, again)) == (2, {})
    assert release(jobs, [(claimed.stage_run_id, 1)], "w1") == set()
    assert not jobs.report([done(claimed, "w1")])[0].won
    assert jobs.report([done(again, "w2")])[0].won


def test_a_retired_worker_leaves_nothing(jobs: Jobs) -> None:
    submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    assert release(jobs, [(claimed.stage_run_id, 1)], "w") == {"echo.first"}
    claim(jobs, "w")
    assert jobs.retire_worker("w") == {"echo.first"}
    assert jobs.workers() == []
    assert jobs.retire_worker("w") == set()
    with pytest.raises(Fenced):
        jobs.renew("w", 60)


# leases


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


# cancel


def test_queued_work_is_cancelled_at_once(jobs_or_forgetful: Jobs) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLED
    assert claim(jobs, "w") == []
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.get(submitted.job_id).finished_at is not None


@pytest.mark.parametrize("ending", ["complete", "fail", "release", "lost"])
def test_running_work_is_asked_to_stop(jobs_or_forgetful: Jobs, ending: str) -> None:
    jobs = jobs_or_forgetful
    submitted = submit_one(jobs, new_job())
    register(jobs, "w", slot="slot")
    (claimed,) = claim(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert jobs.get(submitted.job_id).finished_at is None
    assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
    assert jobs.renew("w", 60).wishes.unwanted == [claimed.stage_run_id]
    match ending:
        case "complete":
            assert not jobs.report([done(claimed, "w", result={"a": 1})])[0].won
        case "fail":
            assert fail(jobs, failed(claimed, "w", OutOfMemory())) == Outcome(won=True, queues=set())
        case "release":
            assert release(jobs, [(claimed.stage_run_id, 1)], "w") == set()
        case "lost":
            assert register(jobs, "w2", slot="slot") == set()
    view = jobs.get(submitted.job_id)
    assert view.status == JobState.CANCELLED
    assert view.finished_at is not None
    assert view.result is None
    assert stages(jobs, submitted.job_id) == {"first": "cancelled", "second": "cancelled"}
    assert jobs.rescue().freed == 0


def test_cancelling_waits_for_the_last_that_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job(DIAMOND))
    register_each(jobs, DIAMOND)
    complete_all(jobs, "a")
    (b,), (c,) = claim(jobs, "b"), claim(jobs, "c")
    assert jobs.cancel(submitted.job_id) == JobState.CANCELLING
    assert release(jobs, [(b.stage_run_id, b.attempt)], "b") == set()
    assert jobs.get(submitted.job_id).status == JobState.CANCELLING
    assert release(jobs, [(c.stage_run_id, c.attempt)], "c") == set()
    assert jobs.get(submitted.job_id).status == JobState.CANCELLED


def test_cancel_comes_too_late(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job({"first": []}))
    register(jobs, "w")
    complete_all(jobs, "w")
    assert jobs.cancel(submitted.job_id) == JobState.COMPLETED
    for unknown in ("job-unknown", "\x00", "\ud800"):
        with pytest.raises(NotFound):
            jobs.cancel(unknown)


def test_cancel_and_completion_have_one_winner(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(claimed: Claim) -> JobState:
        both.wait()
        return jobs.cancel(claimed.job_id)

    def complete(claimed: Claim) -> bool:
        both.wait()
        return jobs.report([done(claimed, "w")])[0].won

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submit_one(jobs, new_job({"first": []}))
            (claimed,) = claim(jobs, "w")
            cancelled, completed = pool.submit(cancel, claimed), pool.submit(complete, claimed)
            state = jobs.get(claimed.job_id).status if completed.result() else cancelled.result()
            final = jobs.get(claimed.job_id).status
            assert final == (JobState.COMPLETED if completed.result() else JobState.CANCELLED)
            assert state in (final, JobState.CANCELLING)


def test_cancel_and_claim_agree(jobs: Jobs) -> None:
    register(jobs, "w")
    both = threading.Barrier(2)

    def cancel(job_id: str) -> JobState:
        both.wait()
        return jobs.cancel(job_id)

    def take() -> list[Claim]:
        both.wait()
        return claim(jobs, "w")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(15):
            submitted = submit_one(jobs, new_job())
            cancelled, taken = pool.submit(cancel, submitted.job_id), pool.submit(take)
            if taken.result():
                assert cancelled.result() == JobState.CANCELLING
                assert stages(jobs, submitted.job_id) == {"first": "running", "second": "cancelled"}
            else:
                assert cancelled.result() == JobState.CANCELLED


# progress and reads


@pytest.mark.parametrize(
    ("unit", "total", "finish_reason", "usage", "shown"),
    [
        ("steps", 31, None, {}, 31),
        ("seconds", 31, "stop", {"first": {"prompt_tokens": 0, "completion_tokens": 7}}, 31),
        ("tokens", 552, "stop", {"first": {"prompt_tokens": 9, "completion_tokens": 40}}, 40),
        ("tokens", None, "length", {"first": {"prompt_tokens": 9, "completion_tokens": 40}}, 40),
        ("tokens", 552, "stop", {"second": {"completion_tokens": 3}}, None),  # a server that does not count
        ("tokens", 552, None, {"first": {"prompt_tokens": 552, "completion_tokens": 0}}, 552),  # of the prompt
        ("bytes", None, None, {}, None),
    ],
)
def test_the_progress_of_a_stage_that_succeeded_is_what_it_made(
    jobs: Jobs, unit: str, total: int | None, finish_reason: str | None, usage: dict[str, Any], shown: int | None
) -> None:
    """The last report comes before the end."""
    register_each(jobs)
    submitted = submit_one(jobs, new_job())
    [claimed] = claim(jobs, "first")
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 1, total, unit)])
    jobs.report([done(claimed, "first", finish_reason=finish_reason, result={"usage": usage} if usage else {})])
    progress = jobs.get(submitted.job_id).stages[0].progress
    assert (progress and (progress.done, progress.total)) == (None if shown is None else (shown, total))
    [listed] = jobs.list(brief=True).jobs
    of_tokens = unit == "tokens" and finish_reason is not None
    assert listed.stages[0].progress == (None if of_tokens else progress)


def test_progress_is_shown_while_the_attempt_runs(jobs: Jobs) -> None:
    submitted = submit_one(jobs, new_job())
    register(jobs, "w")
    (claimed,) = claim(jobs, "w")
    jobs.report_progress([])
    jobs.report_progress(
        [
            ProgressReport(claimed.stage_run_id, 1, 3, 10, "tokens", "abc", "data:image/jpeg;base64,/9j="),
            ProgressReport(claimed.stage_run_id, 2, 9, 10, "tokens"),
            ProgressReport(4711, 1, 9, 10, "tokens"),
        ]
    )
    progress = jobs.get(submitted.job_id).stages[0].progress
    assert progress is not None
    assert progress.model_dump() == {
        "done": 3,
        "total": 10,
        "unit": "tokens",
        "text": "abc",
        "resumed_at": None,
        "picture": "data:image/jpeg;base64,/9j=",
    }
    release(jobs, [(claimed.stage_run_id, 1)], "w")
    assert jobs.get(submitted.job_id).stages[0].progress is None


def test_text_of_any_script_comes_back_as_it_was(jobs: Jobs) -> None:
    register_each(jobs)
    value = {ANY_SCRIPT: [ANY_SCRIPT]}
    submitted = submit_one(jobs, new_job(request=value, metadata=value))
    (claimed,) = claim(jobs, "first")
    assert claimed.request == value
    jobs.report_progress([ProgressReport(claimed.stage_run_id, 1, 1, 1, "tokens", ANY_SCRIPT)])
    jobs.report([done(claimed, "first", result=value)])
    complete_all(jobs, "second")
    view = jobs.get(submitted.job_id)
    assert view.result == value
    assert view.metadata == value
    assert view.stages[0].progress is not None
    assert view.stages[0].progress.text == ANY_SCRIPT
    failing = submit_one(jobs, new_job())
    (claimed,) = claim(jobs, "first")
    fail(jobs, failed(claimed, "first", ModelError(ANY_SCRIPT, field=ANY_SCRIPT)))
    error = jobs.get(failing.job_id).error
    assert error is not None
    assert (error.message, error.field) == (ANY_SCRIPT, ANY_SCRIPT)


def test_pages_go_back_in_time(jobs: Jobs) -> None:
    ids = [submit_one(jobs, new_job()).job_id for _ in range(7)]
    page = jobs.list(limit=3)
    seen = [view.id for view in page.jobs]
    while page.next_cursor is not None:
        page = jobs.list(limit=3, cursor=page.next_cursor)
        seen += [view.id for view in page.jobs]
    assert seen == ids[::-1]


def test_pages_by_state_and_pipeline(jobs: Jobs) -> None:
    kept = submit_one(jobs, new_job()).job_id
    jobs.cancel(submit_one(jobs, new_job()).job_id)
    other = submit_one(jobs, new_job(pipeline=PipelineId("other", "d"))).job_id
    assert [view.id for view in jobs.list(JobFilter(states=frozenset([JobState.QUEUED]))).jobs] == [other, kept]
    assert [view.id for view in jobs.list(JobFilter(states=frozenset([JobState.QUEUED]), pipeline="echo")).jobs] == [
        kept
    ]
    assert jobs.list(JobFilter(pipeline="none")).jobs == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "job-\x00"}, "cursor"),
        ({"wanted": JobFilter(pipeline="\x00")}, "pipeline"),
    ],
)
def test_bad_pages_are_refused(jobs: Jobs, arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        jobs.list(**arguments)
    assert caught.value.field == field


def test_what_is_not_there_is_not_found(jobs: Jobs) -> None:
    job_id = submit_one(jobs, new_job()).job_id
    for unknown in ("job-unknown", "\x00", "\ud800", ""):
        with pytest.raises(NotFound):
            jobs.get(unknown)
        with pytest.raises(NotFound):
            jobs.artifact(job_id, unknown)


def test_counts_and_workers_say_what_is_going_on(jobs: Jobs) -> None:
    jobs.submit_all([new_job() for _ in range(3)])
    register(jobs, "w", slots=2)
    register(jobs, "gone", lease_s=-1)
    claim(jobs, "w", 1)
    counts = jobs.counts()
    assert counts.jobs == {JobState.QUEUED: 2, JobState.IN_PROGRESS: 1, JobState.CANCELLING: 0}
    assert {(count.stage, count.state.value): count.count for count in counts.stage_runs} == {
        ("second", "pending"): 3,
        ("first", "queued"): 2,
        ("first", "running"): 1,
    }
    assert [(worker.id, worker.slots, worker.running) for worker in jobs.workers()] == [("w", 2, 1)]


# the database's side of it


def test_a_crowd_never_deadlocks(jobs: Jobs, database: Database) -> None:
    """Submits, claims, completions, cancels, progress and rescues in big batches of different orders."""
    workers = [(f"{stage}{n}", stage) for stage in DIAMOND for n in range(2)]
    for worker, stage in workers:
        register(jobs, worker, stage, slots=1000)
    job_ids: list[str] = []
    ended = threading.Event()

    def submit() -> None:
        for n in range(8):
            new = [new_job(DIAMOND, tenant=f"t{(n + k) % 3}") for k in range(5)]
            jobs.submit_all(new)
            job_ids.extend(job.job_id for job in new)

    def work(worker: str) -> None:
        rng = random.Random(worker)
        completions: list[Completion] = []
        is_last = False
        while not is_last:
            is_last = ended.is_set()
            found = jobs.claim(worker, 15, reports=completions).claims
            claims = rng.sample(list(found), len(found))
            jobs.report_progress([ProgressReport(each.stage_run_id, each.attempt, 1, 2, "n") for each in claims])
            release(jobs, [(each.stage_run_id, each.attempt) for each in claims[:2]], worker)
            completions = [done(each, worker) for each in claims[2:]]
        jobs.report(completions)

    def disturb() -> None:
        rng = random.Random(0)
        for _ in range(12):
            for job_id in rng.sample(job_ids, min(1, len(job_ids))):
                jobs.cancel(job_id)
            jobs.rescue()

    with ThreadPoolExecutor(len(workers) + 2) as pool:
        working = [pool.submit(work, worker) for worker, _ in workers]
        try:
            for task in [pool.submit(submit), pool.submit(disturb)]:
                task.result()
        finally:
            ended.set()
        for task in working:
            task.result()
    if database.dialect == "postgresql":
        with database.begin() as tx:
            query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
            assert tx.execute(text(query)).scalar_one() == 0
    complete_each(jobs, [worker for worker, _ in workers])
    states = [jobs.get(job_id).status for job_id in job_ids]
    assert states.count(JobState.COMPLETED) + states.count(JobState.CANCELLED) == len(states) == 40
    assert states.count(JobState.COMPLETED) >= 28


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_round_reads_whole_tables(jobs: Jobs, database: Database) -> None:
    scans = []

    @event.listens_for(database._engine, "before_cursor_execute")
    def explain(connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        if statement.split()[0] not in ("SELECT", "UPDATE", "DELETE"):
            return
        plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters[0] if many else parameters)
        scans.extend(
            f"{row[-1]}: {statement}"
            for row in plan
            if row[-1].startswith(("SCAN stage_runs", "SCAN jobs")) and "USING INDEX ix_stage_runs" not in row[-1]
        )

    submitted = [submit_one(jobs, new_job()) for _ in range(4)]
    register(jobs, "w", lease_s=10_000)
    claims = claim(jobs, "w")
    jobs.report_progress([ProgressReport(claims[0].stage_run_id, 1, 1, 2, "n")])
    jobs.report([done(claims[0], "w")])
    fail(jobs, failed(claims[1], "w", OutOfMemory()))
    fail(jobs, failed(claims[1], "w", OutOfMemory()))
    release(jobs, [(claims[2].stage_run_id, 1)], "w")
    jobs.cancel(submitted[3].job_id)
    jobs.renew("w", 60)
    pass_time(database, 5)
    scans.clear()  # pass_time reads all
    jobs.rescue()
    jobs.retire_worker("w")
    jobs.get(submitted[0].job_id)
    jobs.list(JobFilter(states=frozenset([JobState.QUEUED])))
    jobs.list(JobFilter(pipeline="echo"))
    jobs.counts()
    jobs.workers()
    assert scans == []
