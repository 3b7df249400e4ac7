"""Stage runs that are completed, on SQLite and on PostgreSQL."""

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from omni_jobs.database.database import Database
from omni_jobs.errors import Fenced, StageError
from omni_jobs.jobs import Claim, Claims, Completion, Jobs, StoredArtifact
from omni_jobs.states import JobState
from tests.integration.job_steps import (
    DIAMOND,
    REF,
    claim,
    complete_all,
    done,
    new_job,
    register,
    register_each,
    stages,
    submit_one,
)
from tests.services.postgres import until_one_waits_for_a_lock


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
